"""Notices that files of a connection's settings, such as a client's certificate, were replaced.

A client reads these files once, when it is made. It keeps its open connections, but opens new ones
with the old certificate. So a process that runs for long must make new clients.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient

from sluice.errors import SettingsError
from sluice.kafka.brokers import silent_admin

_FILES = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
    "https.ca.location",
)
_SETTLED_S = 1.0
"""How long to wait after a change, because a certificate and its key are written one after the
other."""

Version = tuple[int, int, int]
"""A file's inode, the time of its last change and its size."""


class ReplacedFiles:
    """The files of settings, with their versions at the time when clients were made with them."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._paths = [Path(kafka[name]) for name in _FILES if kafka.get(name)]
        self._used = self._later = self._versions()
        self._later_since = 0.0

    def were_replaced(self) -> bool:
        """Return whether a file has been replaced and the new files are ready to use.

        While files are being replaced, they may not fit together yet.
        """
        if not self._paths:
            return False
        now, current = time.monotonic(), self._versions()
        if current != self._later:
            self._later, self._later_since = current, now
        if current == self._used or now - self._later_since < _SETTLED_S:
            return False
        # If the files are unusable, wait for the same time before trying them again.
        self._later_since = now
        try:
            silent_admin(self._kafka)
        except SettingsError:
            return False
        return None not in current

    def _versions(self) -> list[Version | None]:
        return [_version(path) for path in self._paths]


class LastingAdmin:
    """Keeps an administrative client, and makes a new one after files of its settings change."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._files = ReplacedFiles(kafka)
        self._client = silent_admin(kafka)

    def client(self) -> AdminClient:
        """Return a client that has read the files as they are now.

        As long as the new files are unusable, returns the client with the old files.
        """
        if self._files.were_replaced():
            files = ReplacedFiles(self._kafka)
            self._client = silent_admin(self._kafka)
            self._files = files
        return self._client


def _version(path: Path) -> Version | None:
    """Return the version of a file; None if the file does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
