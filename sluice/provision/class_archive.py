"""The archive of the Java classes that a program loads. It makes the program's next start faster.

The first start writes the archive to the folder `SLUICE_JARS`. An archive belongs to one version of
Java, Spark and the program's other jars.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sluice.provision.machine_checks import find_java, find_spark

WRITE_OPTION = "-XX:ArchiveClassesAtExit="
"""The option that makes a JVM write the archive when it exits; the archive's path follows."""
ARCHIVE_OPTIONS = (
    # By default, Java 17 moves the archive to a random address, so each JVM has a copy of all pages
    # of the archive. At the address for which the archive was made, all JVMs use the pages of the
    # file, and so share 100 MB.
    "-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0",
    "-Xlog:cds=off", "-Xlog:class+path=off",
)  # fmt: skip
"""Options for a JVM that uses an archive of classes, and logs nothing if it cannot use the
archive."""


@contextmanager
def class_archive(folder: Path, jars: list[Path]) -> Iterator[str]:
    """Yield a JVM option that reads the archive of loaded classes, or that writes it.

    `jars` are those on the program's class path, apart from Spark's own.

    An archive of Spark's classes takes 20 seconds of CPU time to write, so runs that start
    meanwhile neither read nor write it.
    """
    archive = archive_file(folder, jars)
    if archive.is_file():
        yield f"-XX:SharedArchiveFile={archive}"
        return
    with ExitStack() as stack:
        try:
            # A run without Delta tables needs no jars, so set-up may not have made the folder.
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(archive.with_suffix(".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Another run has the lock, or the folder is read-only.
            yield "-Xshare:auto"
            return
        # Delete the unfinished archives of runs that were killed.
        for left in folder.glob(f"{archive.stem}.[0-9]*"):
            left.unlink()
        unfinished = archive.with_suffix(f".{os.getpid()}")
        try:
            yield f"{WRITE_OPTION}{unfinished}"
            if unfinished.is_file():
                unfinished.replace(archive)
        finally:
            unfinished.unlink(missing_ok=True)


def archive_file(folder: Path, jars: list[Path]) -> Path:
    """Return the archive of loaded classes in a folder. It exists after the first run."""
    return folder / f"classes-{_fingerprint(jars)}.jsa"


def _fingerprint(jars: list[Path]) -> str:
    """Return a digest of everything that an archive depends on: Java, Spark and the jars."""
    java, spark = find_java(), find_spark()
    files = [*jars]
    if spark is not None:
        # The name of this jar contains Spark's version, which determines Spark's other jars.
        files = [*(spark / "jars").glob("spark-core_*.jar"), *jars]
    times = [file.stat().st_mtime_ns for file in files]
    parts = [str(java.path.resolve()), java.release, sys.executable, *files, *times]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
