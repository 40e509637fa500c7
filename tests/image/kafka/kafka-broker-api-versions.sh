#!/usr/local/bin/python3
"""Asks the broker for its metadata. The jars of set-up do not contain Kafka's own command of this name."""

import sys

from confluent_kafka.admin import AdminClient

AdminClient({"bootstrap.servers": sys.argv[sys.argv.index("--bootstrap-server") + 1]}).list_topics(timeout=10)
