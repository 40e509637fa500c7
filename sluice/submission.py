"""What spark-submit is told: where the jars are, the settings of the process it starts, and a JVM that starts quickly.

A small run spends most of its time on loading Java classes. On this machine's own Spark (a master `local...`) the JVM
therefore compiles quickly rather than well, and keeps an archive of the classes of its first run beside the jars.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import SettingsError
from sluice.provision.checks import LOOPBACK, find_java
from sluice.settings import Settings

_LOGGING = f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'engine' / 'log4j2.properties').as_uri()}"
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmn320m", "-Xlog:cds=off", "-Xlog:class+path=off")
QUIET_JVM = (*_QUICK, _LOGGING)
"""Options of a JVM that is soon up, lives short, and logs what matters."""


@dataclass(frozen=True)
class Submission:
    """Settings of one spark-submit: empty where it needs none."""

    environment: dict[str, str]
    jars: str = ""
    driver_class_path: str = ""
    driver_java_options: str = ""


@contextmanager
def submission(known: Settings, kafka: Mapping[str, str], master: str) -> Iterator[Submission]:
    """Yield what to tell spark-submit; leave the block once it has ended. SettingsError if the jars are missing."""
    jars = connector_jars(known.jars)
    said = environment(known, kafka)
    if not master.startswith("local"):
        yield Submission(said, jars=",".join(str(jar) for jar in jars))
        return
    # The driver's ports are for this machine only. Jars on the class path, unlike others, can be in the archive.
    said["SPARK_LOCAL_IP"] = LOOPBACK
    with scratch() as folder, class_archive(known.jars.parent, jars) as option:
        options = " ".join(f'"{one}"' for one in (*QUIET_JVM, folder, option))
        yield Submission(said, driver_class_path=f"{known.jars}/*", driver_java_options=options)


def environment(known: Settings, kafka: Mapping[str, str]) -> dict[str, str]:
    """Write down the settings for the process that is submitted; secrets go this way, as no process list shows it."""
    return {
        "SLUICE_HOME": str(known.home),
        "SLUICE_PIPELINES": str(known.pipelines),
        "SLUICE_LEDGER": known.ledger,
        "SLUICE_SHARDS": known.shards,
        "SLUICE_CHECKPOINTS": known.checkpoints,
        "SLUICE_JARS": str(known.jars),
        "SLUICE_KAFKA": json.dumps(dict(kafka)),
        "SLUICE_SPARK_CONF": json.dumps(known.spark_conf),
        "SLUICE_MAX_RECORDS": str(known.max_records),
        "SLUICE_DELIVERY": known.delivery,
        "SLUICE_SERVER_TOKEN": known.server_token,
        "SLUICE_SERVER_CA": str(known.server_ca or ""),
        # Unset, Spark's workers pick another Python.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Airflow's hook knows spark-submit by its name only: the one of this Python's pyspark comes first.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
    }


def connector_jars(folder: Path) -> list[Path]:
    """List the jars of Spark's Kafka connector; SettingsError if there are none."""
    jars = sorted(folder.glob("*.jar"))
    if not jars:
        raise SettingsError(f"There are no jars in {folder}.", next_step="Run: python -m sluice.provision jars")
    return jars


def is_noise(line: str) -> bool:
    """Whether a line of spark-submit's output only says that Spark asks Java for a module: Java always warns of it."""
    return line.strip() == "WARNING: Using incubator modules: jdk.incubator.vector"


def run(command: list[str], environment: dict[str, str]) -> int:
    """Run spark-submit with these variables added, until it ends; returns its status."""
    ran = subprocess.Popen(
        command, env=os.environ | environment, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
    )
    with ran:
        assert ran.stderr is not None
        for line in ran.stderr:
            if not is_noise(line):
                sys.stderr.write(line)
    return ran.returncode


@contextmanager
def scratch() -> Iterator[str]:
    """Yield the JVM's option that puts its temporary files, Spark's too, in a folder that is gone with the block.

    A JVM that ends by itself clears them away; one that is killed leaves some 15 MB of libraries, and what it shuffled.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-run-", ignore_cleanup_errors=True) as folder:
        yield f"-Djava.io.tmpdir={folder}"


@contextmanager
def class_archive(folder: Path, jars: list[Path]) -> Iterator[str]:
    """Yield the JVM's option that uses the archive of loaded classes, or writes it if this is the first run."""
    archive = folder / f"classes-{_fingerprint(jars)}.jsa"
    if archive.is_file():
        yield f"-XX:SharedArchiveFile={archive}"
        return
    fresh = archive.with_suffix(f".{os.getpid()}")
    try:
        yield f"-XX:ArchiveClassesAtExit={fresh}"
        if fresh.is_file():
            fresh.replace(archive)
    finally:
        fresh.unlink(missing_ok=True)


def _fingerprint(jars: list[Path]) -> str:
    """Tell apart what an archive depends on: the Java, the Spark and the jars."""
    java = find_java()
    parts = [str(java.path.resolve()), java.release, sys.executable, *jars, *(jar.stat().st_mtime_ns for jar in jars)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
