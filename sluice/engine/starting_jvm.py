"""Connects PySpark to a driver's JVM, whether the JVM or the driver has started the other."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sluice.errors import SettingsError
from sluice.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.01


class Jvm(Protocol):
    """Gives access to the JVM of a driver."""

    @property
    def environment(self) -> Mapping[str, str] | None:
        """Return the JVM's environment variables; None if this process has the same ones."""

    def session(self, settings: Settings, name: str) -> SparkSession:
        """Return the driver's session, after waiting for the JVM."""

    def stop(self, spark: SparkSession) -> None:
        """Stop the session while the driver is shutting down."""


class StartedJvm:
    """The JVM that has started this process, as spark-submit's does."""

    environment = None

    def session(self, settings: Settings, name: str) -> SparkSession:
        from sluice.engine.session import session

        return session(settings, name)

    def stop(self, spark: SparkSession) -> None:
        from sluice.engine.session import stop

        stop(spark)


@dataclass(frozen=True)
class StartingJvm(StartedJvm):
    """A JVM that this process is starting."""

    process: subprocess.Popen[bytes]
    connection: Path
    """The file in which the JVM writes its port and a secret when it has started."""

    def session(self, settings: Settings, name: str) -> SparkSession:
        self.connect()
        return super().session(settings, name)

    def connect(self) -> None:
        """Wait until the JVM has started, and tell PySpark how to connect.

        Several threads may call this.

        Raises SettingsError if the JVM ends before it has started.
        """
        # The JVM renames the file to this path only after it has written the file.
        while not self.connection.exists():
            if self.process.poll() is not None:
                raise SettingsError(
                    f"Spark's JVM exited with status {self.process.returncode} "
                    "while it was starting.",
                    next_step="See the error that Java has printed above. If it is about a "
                    "setting, correct SLUICE_SPARK_CONF.",
                )
            time.sleep(_POLL_S)
        written = self.connection.read_bytes()
        port, length = struct.unpack_from(">ii", written)
        secret = written[8 : 8 + length].decode()
        os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
