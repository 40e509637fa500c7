"""Checks of this machine: Java, a free port, memory. A failed check raises PreflightError."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sluice.errors import PreflightError

LOOPBACK = "127.0.0.1"
OLDEST_JAVA = 17
DEMO_MEMORY_MIB = 4096
"""The memory that Kafka, Airflow and one Spark application use together, plus a margin."""

# Java 8 calls itself 1.8.
_VERSION = re.compile(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)')


@dataclass(frozen=True)
class Java:
    """The path of a `java` command and its feature release, 17 or newer."""

    path: Path
    release: int


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Find Java in JAVA_HOME, else on the PATH.

    Raise PreflightError if Java is missing or too old.
    """
    next_step = (
        f"Install Java {OLDEST_JAVA} or newer (on Debian: apt-get install openjdk-17-jre-headless)"
    )
    path = _java_path(environ)
    if path is None:
        raise PreflightError(
            "Java was not found on the PATH.", next_step=f"{next_step}, or set JAVA_HOME."
        )
    text = _version_text(path)
    version = _VERSION.search(text)
    if version is None:
        line = text.strip().partition("\n")[0]
        raise PreflightError(
            f"Cannot find the version of {path} in its output: {line!r}.", next_step=f"{next_step}."
        )
    release = int(version[1])
    if release < OLDEST_JAVA:
        raise PreflightError(
            f"{path} is Java {release}, but Spark and Kafka need {OLDEST_JAVA} or newer.",
            next_step=f"{next_step}, or set JAVA_HOME to a newer Java.",
        )
    return Java(path, release)


def find_spark(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return SPARK_HOME, or else PySpark's folder; None if Spark is not installed."""
    if home := environ.get("SPARK_HOME"):
        return Path(home)
    pyspark = find_spec("pyspark")
    if pyspark is None or not pyspark.origin:
        return None
    return Path(pyspark.origin).parent


def _java_path(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("JAVA_HOME")
    if not home:
        java = shutil.which("java", path=environ.get("PATH"))
        return Path(java) if java else None
    path = Path(home, "bin", "java")
    if not os.access(path, os.X_OK):
        raise PreflightError(
            f"JAVA_HOME is {home}, but {path} does not exist.",
            next_step="Correct or unset JAVA_HOME.",
        )
    return path


def _version_text(path: Path) -> str:
    # A Java installation has a file with its version, which takes less time to read than Java takes
    # to start.
    with suppress(OSError):
        text = (path.resolve().parent.parent / "release").read_text()
        if _VERSION.search(text):
            return text
    try:
        ran = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise PreflightError(
            f"{path} does not start: {problem}.", next_step="Reinstall Java."
        ) from None
    # `java -version` writes to standard error.
    return ran.stderr + ran.stdout


def free_port() -> int:
    """Return an unused port of the loopback address."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def check_port(port: int, *, purpose: str = "", next_step: str = "") -> None:
    """Raise PreflightError if `port` is not available.

    `purpose` is the component that needs the port; the error names it.
    """
    if (reason := _why_not(port)) is None:
        return
    wanted = f", which {purpose} needs," if purpose else ""
    raise PreflightError(
        f"Port {port} of {LOOPBACK}{wanted} {reason}.",
        next_step=next_step or "Stop the program that uses the port, or choose another port.",
    )


def _why_not(port: int) -> str | None:
    if not 0 < port < 65_536:
        return "is not a port: ports are 1 to 65535"
    try:
        with socket.create_server((LOOPBACK, port)):
            return None
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            return "is in use"
        return f"is not available ({problem.strerror})"


def check_memory(need_mib: int = DEMO_MEMORY_MIB, meminfo: Path = Path("/proc/meminfo")) -> None:
    """Raise PreflightError if less than `need_mib` MiB are available.

    Accept a system without /proc/meminfo.
    """
    try:
        available = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return
    if available and (mib := int(available[1]) // 1024) < need_mib:
        raise PreflightError(
            f"{mib} MiB of memory are available, but {need_mib} MiB are needed.",
            next_step="Close other programs, or use a machine with more memory.",
        )
