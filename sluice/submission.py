"""Builds the spark-submit command of a run, for `sluice run` and for Airflow's operator.

A small run spends most of its time loading Java classes. With a local master, the JVM therefore uses only its fast
compiler (C1), and shares an archive of loaded classes, which the first run writes next to the jars.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import SettingsError
from sluice.provision.checks import LOOPBACK, find_java
from sluice.settings import Settings

_ENGINE = Path(__file__).parent / "engine"
APPLICATION = _ENGINE / "main.py"
"""The program that spark-submit starts. Its arguments are a pipeline and, optionally, names of jobs."""
_LOGGING = f"-Dlog4j2.configurationFile={(_ENGINE / 'log4j2.properties').as_uri()}"
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmn320m", "-Xlog:cds=off", "-Xlog:class+path=off")
QUIET_JVM = (*_QUICK, _LOGGING)
"""Options for a short-lived JVM that starts quickly and logs only warnings."""


@dataclass(frozen=True)
class Submission:
    """One spark-submit command. Jars, class path and Java options are empty if not needed."""

    master: str
    arguments: tuple[str, ...]
    """Arguments of the application."""
    environment: dict[str, str]
    jars: str = ""
    driver_class_path: str = ""
    driver_java_options: str = ""
    application: str = str(APPLICATION)

    @property
    def command(self) -> list[str]:
        """The command line; spark-submit is that of this Python's pyspark."""
        options = {
            "--master": self.master,
            "--jars": self.jars,
            "--driver-class-path": self.driver_class_path,
            "--driver-java-options": self.driver_java_options,
        }
        return [
            str(Path(sys.executable).parent / "spark-submit"),
            *(word for option, value in options.items() if value for word in (option, value)),
            self.application,
            *self.arguments,
        ]

    def run(self) -> int:
        """Run the command and return its status. Java's warning about incubator modules is filtered out."""
        environment = os.environ | self.environment
        process = subprocess.Popen(
            self.command, env=environment, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
        )
        with process:
            assert process.stderr is not None
            for line in process.stderr:
                if not is_noise(line):
                    sys.stderr.write(line)
        return process.returncode


@contextmanager
def submission(
    settings: Settings, kafka: Mapping[str, str], master: str, arguments: Sequence[str]
) -> Iterator[Submission]:
    """Yield the spark-submit command of a run; the block must last until the command has ended.

    Raises SettingsError if there are no jars.
    """
    jars = connector_jars(settings.jars)
    variables = environment(settings, kafka)
    with ExitStack() as stack:
        if master.startswith("local"):
            # Bind the driver's ports to this machine only. The archive can only hold classes from the class path.
            variables["SPARK_LOCAL_IP"] = LOOPBACK
            temporary = stack.enter_context(temporary_files())
            archive = stack.enter_context(class_archive(settings.jars.parent, jars))
            yield Submission(
                master,
                tuple(arguments),
                variables,
                driver_class_path=f"{settings.jars}/*",
                driver_java_options=" ".join(f'"{option}"' for option in (*QUIET_JVM, temporary, archive)),
            )
        else:
            yield Submission(master, tuple(arguments), variables, jars=",".join(map(str, jars)))


def environment(settings: Settings, kafka: Mapping[str, str]) -> dict[str, str]:
    """The settings as environment variables for the driver, so that secrets do not appear in process lists."""
    return {
        "SLUICE_HOME": str(settings.home),
        "SLUICE_PIPELINES": str(settings.pipelines),
        "SLUICE_LEDGER": settings.ledger,
        "SLUICE_SHARDS": settings.shards,
        "SLUICE_CHECKPOINTS": settings.checkpoints,
        "SLUICE_JARS": str(settings.jars),
        "SLUICE_KAFKA": json.dumps(dict(kafka)),
        "SLUICE_SPARK_CONF": json.dumps(settings.spark_conf),
        "SLUICE_MAX_RECORDS": str(settings.max_records),
        "SLUICE_LINGER_MS": "" if settings.linger_ms is None else str(settings.linger_ms),
        "SLUICE_DELIVERY": settings.delivery,
        "SLUICE_SERVER_TOKEN": settings.server_token,
        "SLUICE_SERVER_CA": str(settings.server_ca or ""),
        # Without these variables, Spark's Python workers may use another interpreter.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Keeps the application's folder off sys.path.
        "PYTHONSAFEPATH": "1",
        # Airflow's hook finds spark-submit on the PATH: this Python's pyspark must come first.
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))),
    }


def connector_jars(folder: Path) -> list[Path]:
    """The jars of Spark's Kafka connector. Raises SettingsError if there are none."""
    jars = sorted(folder.glob("*.jar"))
    if not jars:
        raise SettingsError(f"There are no jars in {folder}.", next_step="Run: python -m sluice.provision jars")
    return jars


def is_noise(line: str) -> bool:
    """Whether a line is the warning, which Java prints at every start, that Spark uses an incubator module."""
    return line.strip() == "WARNING: Using incubator modules: jdk.incubator.vector"


@contextmanager
def temporary_files() -> Iterator[str]:
    """Yield a JVM option for a temporary folder, which Spark uses too and which is removed after the block.

    A JVM removes its temporary files unless it is killed; then about 15 MB of libraries and all shuffle files remain.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-run-", ignore_cleanup_errors=True) as folder:
        yield f"-Djava.io.tmpdir={folder}"


@contextmanager
def class_archive(folder: Path, jars: list[Path]) -> Iterator[str]:
    """Yield a JVM option that reads the archive of loaded classes, or that writes it in the first run."""
    archive = folder / f"classes-{_fingerprint(jars)}.jsa"
    if archive.is_file():
        yield f"-XX:SharedArchiveFile={archive}"
        return
    unfinished = archive.with_suffix(f".{os.getpid()}")
    try:
        yield f"-XX:ArchiveClassesAtExit={unfinished}"
        if unfinished.is_file():
            unfinished.replace(archive)
    finally:
        unfinished.unlink(missing_ok=True)


def _fingerprint(jars: list[Path]) -> str:
    """A digest of everything that an archive depends on: Java, Spark and the jars."""
    java = find_java()
    parts = [str(java.path.resolve()), java.release, sys.executable, *jars, *(jar.stat().st_mtime_ns for jar in jars)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
