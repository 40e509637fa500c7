#!/bin/sh
# Adds to Debian's files in folder $1 what the Dockerfile needs from the image python:3.11-slim-bookworm: Python's packages
# are in /usr/local, and the folder for the manual pages of Java's programs exists. This machine's CA certificates and
# pip.conf lead to its package registries.
set -eu
mkdir -p "$1/usr/share/man/man1"
cp -r /usr/local/share/ca-certificates "$1/usr/local/share/"
if test -e /etc/pip.conf; then cp /etc/pip.conf "$1/etc/"; fi
chroot "$1" update-ca-certificates
chroot "$1" python3.11 -m venv /usr/local
