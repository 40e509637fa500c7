"""What this machine must have, each check one clear sentence when it fails: Java, a free port, memory."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import PreflightError

LOOPBACK = "127.0.0.1"
OLDEST_JAVA = 17
DEMO_MEMORY_MIB = 4096
"""What Kafka, Airflow and one Spark application take together, with some room."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True)
class Java:
    """A Java launcher and its feature release, 17 or newer."""

    path: Path
    release: int


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Find the Java of JAVA_HOME, else of PATH; PreflightError if there is none, or it is too old."""
    next_step = f"Install Java {OLDEST_JAVA} or newer (on Debian: apt-get install openjdk-17-jre-headless)"
    path = _java_path(environ)
    if path is None:
        raise PreflightError("Java was not found on the PATH.", next_step=f"{next_step}, or set JAVA_HOME.")
    said = _version_text(path)
    found = _VERSION.search(said)
    if found is None:
        told = said.strip().partition("\n")[0]
        raise PreflightError(f"{path} -version does not name a version, it says {told!r}.", next_step=f"{next_step}.")
    release = int(found[1])
    if release < OLDEST_JAVA:
        raise PreflightError(
            f"{path} is Java {release}, and Spark and Kafka need {OLDEST_JAVA} or newer.",
            next_step=f"{next_step}, or set JAVA_HOME to one.",
        )
    return Java(path, release)


def _java_path(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("JAVA_HOME")
    if not home:
        found = shutil.which("java", path=environ.get("PATH"))
        return Path(found) if found else None
    path = Path(home, "bin", "java")
    if not os.access(path, os.X_OK):
        raise PreflightError(f"JAVA_HOME is {home}, but {path} is not there.", next_step="Correct or unset JAVA_HOME.")
    return path


def _version_text(path: Path) -> str:
    try:
        ran = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise PreflightError(f"{path} does not start: {problem}.", next_step="Install Java anew.") from None
    return ran.stderr + ran.stdout


def free_port() -> int:
    """Return a port of the loopback address that nothing listens on now."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def check_port(port: int, *, purpose: str = "", next_step: str = "") -> None:
    """Raise PreflightError if `port` cannot be listened on; `purpose` says who wants it."""
    if (reason := _why_not(port)) is None:
        return
    wanted = f", which {purpose} needs," if purpose else ""
    raise PreflightError(
        f"Port {port} of {LOOPBACK}{wanted} {reason}.",
        next_step=next_step or "Stop what listens there, or choose another port.",
    )


def _why_not(port: int) -> str | None:
    if not 0 < port < 65_536:
        return "is not a port: they go from 1 to 65535"
    try:
        with socket.create_server((LOOPBACK, port)):
            return None
    except OSError as problem:
        taken = problem.errno == errno.EADDRINUSE
        return "is taken" if taken else f"cannot be listened on ({problem.strerror})"


def check_memory(need_mib: int = DEMO_MEMORY_MIB, meminfo: Path = Path("/proc/meminfo")) -> None:
    """Raise PreflightError if less than `need_mib` MiB are available; a system that does not say passes."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return
    if found and (available := int(found[1]) // 1024) < need_mib:
        raise PreflightError(
            f"{available} MiB of memory are available, and {need_mib} MiB are needed.",
            next_step="Close other programs, or use a machine with more memory.",
        )
