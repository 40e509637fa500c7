"""Connects PySpark to a JVM that has been started before PySpark was imported."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import SettingsError

_POLL_S = 0.01


@dataclass(frozen=True)
class StartingJvm:
    """A JVM that is being started. PySpark can use it after `connect`."""

    process: subprocess.Popen[bytes]
    connection: Path
    """The file in which the JVM writes its port and a secret when it has started."""

    def connect(self) -> None:
        """Wait until the JVM has started, and tell PySpark how to connect.

        Several threads may call this.

        Raises SettingsError if the JVM ends before it has started.
        """
        # The JVM gives the file its name only after it has written the file.
        while not self.connection.exists():
            if self.process.poll() is not None:
                raise SettingsError(
                    f"Spark's JVM has ended with status {self.process.returncode} "
                    "before it had started.",
                    next_step="See what Java has printed above. If it names a setting, "
                    "correct SLUICE_SPARK_CONF.",
                )
            time.sleep(_POLL_S)
        written = self.connection.read_bytes()
        port, length = struct.unpack_from(">ii", written)
        secret = written[8 : 8 + length].decode()
        os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
