"""Which runs a warm driver may take.

A JVM and imported modules keep settings and code. A warm driver may only take runs with the same
settings and code. The driver listens at a socket whose name is a digest of both. So a run never
finds a
driver of another version, with other settings of Spark, or with other libraries.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from sluice.errors import SettingsError
from sluice.settings import Settings
from sluice.spark_submit import environment, is_local
from sluice.version import __version__

_PACKAGE = Path(__file__).parents[1]
_LONGEST_PATH = 100
"""The longest path of a socket in bytes; Linux allows 107."""
_KEPT = ("SPARK_", "PYSPARK_", "JAVA_", "JDK_", "HADOOP_", "YARN_", "LD_", "MALLOC_", "MIMALLOC_")
"""Prefixes of the environment variables that are read only when a JVM or Python starts."""
_KEPT_NAMES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONOPTIMIZE",
    "PYTHONUTF8",
)
_OF_STORAGE = ("AWS_", "AZURE_", "GOOGLE_", "KRB5")
"""Prefixes of the variables with which the JVM reaches the storage of Delta tables."""
_SET_BY_SLUICE = ("SPARK_LOCAL_IP",)
"""Variables that `submission` sets, whatever their values in the user's environment."""


def driver_key(settings: Settings, master: str, *, delta: bool) -> str:
    """Return the key of the driver that may run a pipeline with these settings."""
    variables = os.environ | environment(settings, {})
    prefixes = (*_KEPT, *_OF_STORAGE) if delta else _KEPT
    kept: dict[str, str] = {}
    for name, value in variables.items():
        is_kept = name in _KEPT_NAMES or name.startswith(prefixes)
        if is_kept and value and name not in _SET_BY_SLUICE:
            kept[name] = value
    parts = (
        # Containers may share the folder of sockets, but not the sockets.
        socket.gethostname(),
        os.getuid(),
        __version__,
        sys.executable,
        sys.version,
        [*_dependencies(variables.get("PYTHONPATH", ""))],
        _newest_module(),
        master,
        settings.memory,
        sorted(settings.spark_conf.items()),
        str(settings.jars),
        delta,
        sorted(kept.items()),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _dependencies(paths: str) -> Iterator[tuple[str, int]]:
    """Yield the name, with its version, and the time of each installed distribution.

    `paths` is the PYTHONPATH of the driver.
    """
    # Only these folders count: programs may have others on their paths, such as Airflow's DAGs.
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    folders += paths.split(os.pathsep)
    for folder in dict.fromkeys(folders):
        if not folder or not Path(folder).is_dir():
            continue
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.name.endswith((".dist-info", ".egg-info", ".egg-link")):
                yield entry.name, entry.stat().st_mtime_ns


def _newest_module(folder: Path = _PACKAGE) -> int:
    """Return the newest time at which any module of this package was changed."""
    newest = 0
    for entry in os.scandir(folder):
        if entry.name.endswith(".py"):
            newest = max(newest, entry.stat().st_mtime_ns)
        elif entry.is_dir() and entry.name != "__pycache__":
            newest = max(newest, _newest_module(Path(entry.path)))
    return newest


def drivers_folder(settings: Settings) -> Path:
    """Return the folder of the warm drivers' sockets and logs. Only this user can open it."""
    return settings.home / "warm"


def socket_path(settings: Settings, key: str) -> Path:
    """Return the path of the socket of the driver with a key.

    Raise SettingsError if the path is too long for a socket.
    """
    path = drivers_folder(settings) / key
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise SettingsError(
            f"The path {path} is too long for a socket.",
            next_step="Set SLUICE_HOME to a folder with a shorter path.",
        )
    return path


def require_local(master: str) -> None:
    """Raise SettingsError unless Spark is local.

    A pipeline's file can be sent to the executors of a cluster only once in the life of a JVM.
    """
    if not is_local(master):
        raise SettingsError(
            f"A warm driver needs a local Spark, but the master is {master}.",
            next_step="Use a master such as local[2], or run the pipeline without a warm driver.",
        )
