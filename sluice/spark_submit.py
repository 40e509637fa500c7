"""Builds the spark-submit command of a run, for `sluice run` and for Airflow's operator.

Airflow's operator runs the command. The command starts Spark's JVM, and the JVM starts the driver.
`sluice run`
starts the driver, which starts the JVM with the same options, because both can then start side by
side.

A small run spends most of its time loading Java classes. The driver's JVM therefore reads an
archive of loaded classes, which the first run writes to the folder `SLUICE_JARS`
(`provision/class_archive.py`). The JVM uses only its fast compiler (C1). Python's tasks read and
process the records, so the optimizing compiler would take longer than it saves.

On a cluster, each run sends this package to the executors, which therefore run the driver's version
of Sluice. If the pipeline has Delta tables, the run also sends Delta Lake's jars. The driver itself
sends the pipeline's file.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from pathlib import Path
from threading import Thread
from typing import Any

from sluice.errors import SettingsError
from sluice.provision.class_archive import ARCHIVE_OPTIONS, WRITE_OPTION, class_archive
from sluice.provision.machine_checks import LOOPBACK, find_spark
from sluice.provision.supported_versions import release_of
from sluice.settings import Settings
from sluice.support.startup import PREPARED_DAEMON
from sluice.values.run_memory import heap_mb

_PACKAGE = Path(__file__).parent
_DRIVER_WITH_JVM = _PACKAGE / "commands" / "driver_with_jvm.py"
_ENGINE = _PACKAGE / "engine"
APPLICATION = _PACKAGE / "driver.py"
"""The program that spark-submit starts. Its arguments are options and a pipeline's name."""
_LOGGING = f"-Dlog4j2.configurationFile={(_ENGINE / 'log4j2.properties').as_uri()}"
_ALLOCATORS = {
    # By default, the C library keeps freed memory in eight arenas per core. The JVM's threads fill
    # the arenas in turn with a task's buffers, 50 MB each.
    "MALLOC_ARENA_MAX": "2",
    # By default, the C library also keeps freed buffers of up to 32 MB, once a program has freed
    # such a buffer.
    "MALLOC_MMAP_THRESHOLD_": "4194304",
    # Arrow's allocator would return freed memory after 10 ms. The driver and the workers choose
    # better moments (`support/memory.py`).
    "MIMALLOC_PURGE_DELAY": "10000",
    # With pages of 2 MB, the driver and the workers together need more memory, and just as much CPU
    # time.
    "MIMALLOC_ALLOW_THP": "0",
}
"""How allocators keep freed memory, unless the user's environment says otherwise."""
_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
QUICK_JVM = (
    _QUICK_COMPILER, "-XX:+UseSerialGC", "-Xms256m", "-Xmn96m", "-XX:+ExitOnOutOfMemoryError",
    "-Dio.netty.jfr.enabled=false", *ARCHIVE_OPTIONS,
)  # fmt: skip
"""Options for a JVM that starts quickly.

A run over 10,000 orders takes 13 CPU seconds instead of 23, and 8 with the archive of classes. A
small young generation uses the same memory again instead of new pages. The heap is small at the
start, too. By default, it is a 64th of the host's memory, and the JVM fills it with garbage before
it collects any. A JVM whose heap is full ends at once. Otherwise, only one thread would end, and
the driver might wait for this thread for ever. Netty would start Java's Flight Recorder, which
nobody reads, with its first buffer."""
QUIET_JVM = (*QUICK_JVM, _LOGGING)
"""Options for a short-lived JVM that starts quickly and logs only warnings."""
_SHUFFLE_CONF = {"spark.shuffle.compress": "false"}
"""Spark settings for a session without Delta tables: tasks have compressed the rows of all shuffles
already."""
_LOCAL_CONF = {"spark.task.maxDirectResultSize": "128m"}
"""Spark settings for a JVM that is driver and executor in one.

By default, this JVM stores a result of more than 1 MB as a block, and fetches the block from itself
through a socket. This took 3 % of the time for ten million orders."""
_UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
"""Spark settings with which the JVM and Python exchange rows through Unix sockets.

Through TCP, a task of few rows waits for 40 ms: the JVM's side holds a small packet back until the
packet before is acknowledged, and Python's side delays the acknowledgement."""
_UNIX_SOCKETS_SINCE = (4, 2)
"""The first release of Spark with which Unix sockets were tested. Spark 4.0 lacks them."""
_SOCKET_NAME = f".{'0' * 36}.sock"
"""A name as long as those of Spark's sockets."""
_EXTENSIONS = "spark.sql.extensions"
_ARCHIVES = "spark.archives"
DELTA_CONF = {
    _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A table's log is read in two tasks rather than 50, which take seconds on two cores.
    "spark.databricks.delta.snapshotPartitions": "2",
    # The rows of a MERGE come from the driver. They are the same each time Spark
    # reads them, so no copy is stored.
    "spark.databricks.delta.merge.materializeSource": "none",
}
"""Spark settings for a session that writes Delta tables."""
CODE = "sluice.zip"
"""The name of the archive in which executors receive this package."""
FINISHED = "SLUICE_FINISHED"
"""The environment variable with the path of a file that the driver makes when it has done
everything."""
UNFINISHED = (
    "The driver ended with status 0 before the run was complete. "
    "Look for code that ends the process."
)
CONNECTION = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""The environment variable with the path of a file in which the JVM writes how to connect, if a
driver starts the JVM."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WRITES_ARCHIVE = "SLUICE_WRITES_ARCHIVE"
"""The environment variable that is set if the driver's JVM writes the archive when it exits."""
ARCHIVING = (
    "The run has ended. Spark now writes an archive of Java classes, with which later runs start "
    "faster. This takes 10 to 15 seconds, or longer on a busy machine."
)
FIRST_RUN = (
    "The first run takes 10 to 15 seconds longer, "
    "because it also writes an archive of Java classes.\n"
)


@dataclass(frozen=True)
class Submission:
    """One spark-submit command. Jars, files and class path are empty if not needed."""

    master: str
    arguments: tuple[str, ...]
    """Arguments of the application."""
    environment: dict[str, str]
    jars: str = ""
    files: str = ""
    driver_class_path: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings that must be known before the driver's JVM or the executors start."""
    application: str = str(APPLICATION)
    program: str = str(_DRIVER_WITH_JVM)
    """The program of a driver that starts the JVM."""
    is_first: bool = False
    """Whether the run also writes the archive of Java classes."""
    finished: Path | None = None
    """The file that a driver makes when it has done everything; None if the command is not a
    driver."""
    connection: Path | None = None
    """The file in which the driver's JVM writes how to connect, if the driver starts it; None if
    the command is not a driver."""

    @property
    def is_finished(self) -> bool:
        """Whether the driver has done everything.

        Code that ends its process may also end it with status 0.
        """
        return self.finished is None or self.finished.exists()

    @property
    def command(self) -> list[str]:
        """The command line; spark-submit comes from this Python's pyspark."""
        spark_submit = str(Path(sys.executable).parent / "spark-submit")
        return [spark_submit, *self._options, self.application, *self.arguments]

    @property
    def driver_command(self) -> list[str]:
        """The command line of a driver that starts the JVM, for `driver_environment`."""
        return [sys.executable, self.program, *self.arguments]

    @property
    def driver_environment(self) -> dict[str, str]:
        """The environment variables of a driver that starts the JVM."""
        return {
            **self.environment,
            CONNECTION: str(self.connection or ""),
            "PYSPARK_SUBMIT_ARGS": shlex.join([*self._options, "pyspark-shell"]),
            # spark-submit sets these two variables for the driver that it starts.
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "YES",
        }

    @property
    def _options(self) -> list[str]:
        options = {
            "--master": self.master,
            "--jars": self.jars,
            "--files": self.files,
            "--driver-class-path": self.driver_class_path,
        }
        words: list[str] = []
        for option, value in options.items():
            if value:
                words += [option, value]
        for name, value in self.conf.items():
            words += ["--conf", f"{name}={value}"]
        return words

    def run(self, patience_s: float = 5.0) -> int:
        """Run the driver and return its status.

        A driver that ends with 0 before it has done everything counts as 1.

        Java's warning about incubator modules is filtered out.

        If this process gets SIGINT, SIGTERM or SIGHUP, end the driver and all processes that it has
        started, and raise Interrupted. Processes that still run after `patience_s` get SIGKILL.
        """
        if self.is_first:
            sys.stderr.write(FIRST_RUN)
        environment = os.environ | self.driver_environment
        with interruptible() as begin:
            process = subprocess.Popen(
                self.driver_command,
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
            with process:
                assert process.stderr is not None
                try:
                    begin()
                    for line in process.stderr:
                        if not is_noise(line):
                            sys.stderr.write(line)
                    process.wait()
                except Interrupted:
                    # Imported only here, because the import takes 15 ms.
                    from sluice.support import processes

                    # The processes are listed before the driver ends: after its end, the processes
                    # that it has started cannot be found any more.
                    started = processes.with_descendants(process.pid)
                    processes.end(
                        lambda: [*filterfalse(processes.has_ended, started)],
                        patience_s,
                    )
                    raise
        if process.returncode == 0 and not self.is_finished:
            sys.stderr.write(f"{UNFINISHED}\n")
            return 1
        return process.returncode


class Interrupted(BaseException):
    """This process got the signal `number` while it waited for a command."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Raise Interrupted on SIGINT, SIGTERM and SIGHUP after the block called the yielded function.

    The terminal sends SIGINT to the command, too. The command ignores it, because PySpark would
    print a traceback.
    """
    received: list[int] = []
    has_begun = False

    def receive(number: int, frame: object) -> None:
        received.append(number)
        if has_begun:
            raise Interrupted(number)

    def begin() -> None:
        nonlocal has_begun
        if signal.SIGINT in before:
            signal.signal(signal.SIGINT, receive)
        has_begun = True
        if received:
            # The signal came while the command started, when its process was not known yet.
            raise Interrupted(received[0])

    before: dict[signal.Signals, Any] = {}
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        # A signal that is ignored stays ignored. For example, nohup ignores SIGHUP, so that the
        # command goes on without a terminal.
        if handler is not signal.SIG_IGN:
            before[number] = handler
    try:
        for number in before:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else receive)
        yield begin
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def submission(
    settings: Settings,
    kafka: Mapping[str, str],
    master: str,
    arguments: Sequence[str],
    *,
    delta: bool = False,
    runs_at_once: int = 1,
) -> Iterator[Submission]:
    """Yield the spark-submit command of a run; the block must last until the command has ended.

    `delta` says whether the pipeline writes Delta tables, for which Spark needs more jars and
    settings. `runs_at_once` is the maximum number of runs that share the JVM. If it is more than
    one, the master must be local. Each run then gets the number of threads that the master names.

    Raise SettingsError if Delta Lake's jars are missing, or if the settings ask for the deploy
    mode cluster.
    """
    if settings.spark_conf.get("spark.submit.deployMode") == "cluster":
        raise deploy_mode_error("SLUICE_SPARK_CONF sets spark.submit.deployMode to cluster")
    jars, conf = [], _SHUFFLE_CONF
    if delta:
        jars, conf = delta_jars(settings), delta_conf(settings)
        # The session gives SLUICE_SPARK_CONF precedence over spark-submit's settings.
        settings = replace(
            settings, spark_conf={**settings.spark_conf, _EXTENSIONS: conf[_EXTENSIONS]}
        )
    archives = _archives(settings, master)
    if archives:
        conf = {**conf, _ARCHIVES: archives}
        settings = replace(settings, spark_conf={**settings.spark_conf, _ARCHIVES: archives})
    variables = environment(settings, kafka)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        variables[FINISHED] = str(folder / "finished")
        # The archive can only hold classes from the class path, so Delta Lake's jars are on it,
        # too.
        archive = stack.enter_context(class_archive(settings.jars, jars))
        writes_archive = archive.startswith(WRITE_OPTION)
        variables[WRITES_ARCHIVE] = "1" if writes_archive else ""
        options = (*QUIET_JVM, f"-Djava.io.tmpdir={folder}", archive)
        conf = {
            "spark.driver.extraJavaOptions": " ".join(f'"{option}"' for option in options),
            **_heap(settings, master, runs_at_once, delta=delta),
            **conf,
        }
        if is_local(master):
            conf |= _LOCAL_CONF | _socket_conf(folder)
        if runs_at_once > 1:
            # Tasks of one run that hang must not keep the tasks of other runs from running.
            threads = local_threads(master)
            conf["spark.default.parallelism"] = str(threads)
            master = f"local[{threads * runs_at_once}]"
        submitted = Submission(
            master,
            tuple(arguments),
            variables,
            driver_class_path=os.pathsep.join(map(str, jars)),
            conf=conf,
            is_first=writes_archive,
            finished=folder / "finished",
            connection=folder / "connection",
        )
        if is_local(master):
            # Binds the driver's ports to this machine only.
            variables["SPARK_LOCAL_IP"] = LOOPBACK
            variables[PREPARED_DAEMON] = str(folder / "daemon")
            yield submitted
        else:
            variables["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
            yield replace(
                submitted,
                jars=",".join(map(str, jars)),
                files=str(package_archive(folder)),
                conf={**submitted.conf, **executor_environment(settings)},
            )


def _socket_conf(folder: Path) -> dict[str, str]:
    """Return Spark settings for the sockets of a JVM with this temporary folder."""
    spark = find_spark()
    if spark is None or not _takes_sockets(folder):
        return {}
    for jar in (spark / "jars").glob("spark-launcher_*.jar"):
        if release_of(jar.stem.rpartition("-")[2]) >= _UNIX_SOCKETS_SINCE:
            return _UNIX_SOCKETS
    return {}


def _takes_sockets(folder: Path) -> bool:
    """Return whether Spark's sockets can be made in a folder.

    Its path may be too long for sockets, or its file system may have none.
    """
    path = folder / _SOCKET_NAME
    with socket.socket(socket.AF_UNIX) as bound:
        try:
            bound.bind(str(path))
        except OSError:
            return False
    path.unlink()
    return True


def local_threads(master: str) -> int:
    """Return the number of tasks that a local master runs at the same time."""
    given = master.removeprefix("local").strip("[]").partition(",")[0].strip()
    if given == "*":
        return os.cpu_count() or 1
    return int(given or 1)


def deploy_mode_error(cause: str) -> SettingsError:
    """Return the error for settings that ask for the deploy mode cluster.

    `cause` is a clause that names the setting.
    """
    return SettingsError(
        f"{cause}, but Sluice's driver only runs in client mode: "
        "in Airflow's task or in sluice run.",
        next_step="Set the deploy mode to client, or remove the setting. "
        "Executors run on the cluster in either mode.",
    )


def is_local(master: str) -> bool:
    """Return whether the executor runs in the driver's JVM.

    That is the case for `local` or `local[2]`, but not for `local-cluster[2,1,1024]`.
    """
    return master == "local" or master.startswith("local[")


def package_archive(folder: Path) -> Path:
    """Write this package's modules to a zip file in a folder."""
    archive = folder / CODE
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for module in sorted(_PACKAGE.rglob("*.py")):
            file.write(module, module.relative_to(_PACKAGE.parent))
    return archive


def _archives(settings: Settings, master: str) -> str:
    """Return the archives that Spark unpacks on a cluster's executors, including the user's own.

    Return an empty text if the pipeline has no libraries.
    """
    if settings.libraries is None or is_local(master):
        return ""
    # Imported only here and below, because the import takes 20 ms.
    from sluice.provision.libraries import ON_EXECUTORS, archive_of

    own = settings.spark_conf.get(_ARCHIVES, "").split(",")
    return ",".join(filter(None, [*own, f"{archive_of(settings.libraries)}#{ON_EXECUTORS}"]))


def executor_environment(settings: Settings) -> dict[str, str]:
    """Return the Spark settings that set environment variables of executors.

    They contain no secrets: the driver sends secrets that a task needs, such as a token, with the
    task.
    """
    # Spark copies the archive to each executor's working directory, and starts Python's daemon
    # there. Python searches PYTHONPATH first, so another version of Sluice that is installed
    # on an executor's host is not used.
    conf = {"spark.executorEnv.PYTHONPATH": CODE}
    if settings.libraries is not None:
        from sluice.provision.libraries import ON_EXECUTORS

        conf["spark.executorEnv.PYTHONPATH"] = f"{CODE}:{ON_EXECUTORS}"
    if settings.server_ca is not None:
        conf["spark.executorEnv.SLUICE_SERVER_CA"] = str(settings.server_ca)
    return conf


def environment(settings: Settings, kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the settings as the driver's environment.

    Unlike arguments, secrets in the environment do not appear in lists of processes.
    """
    spark = find_spark()
    variables = {
        "SLUICE_HOME": str(settings.home),
        "SLUICE_PIPELINES": str(settings.pipelines),
        "SLUICE_LEDGER": settings.ledger,
        "SLUICE_SHARDS": settings.shards,
        "SLUICE_JARS": str(settings.jars),
        "SLUICE_KAFKA": json.dumps(dict(kafka)),
        "SLUICE_REGISTRY": json.dumps(settings.registry),
        "SLUICE_COMMIT_OFFSETS": str(settings.commit_offsets).lower(),
        "SLUICE_SPARK_CONF": json.dumps(settings.spark_conf),
        "SLUICE_MEMORY": f"{settings.memory}m",
        "SLUICE_LIBRARIES": str(settings.libraries or ""),
        "SLUICE_MAX_RECORDS": "" if settings.max_records is None else str(settings.max_records),
        "SLUICE_LINGER_MS": "" if settings.linger_ms is None else str(settings.linger_ms),
        "SLUICE_SERVER_TOKEN": settings.server_token,
        "SLUICE_SERVER_CA": str(settings.server_ca or ""),
        # Without these variables, Spark's Python workers may use another interpreter.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LAUNCHER_OPTS": " ".join(launcher_options(spark)),
        # Keeps the folder of `driver.py` off sys.path.
        "PYTHONSAFEPATH": "1",
        # Airflow's hook finds spark-submit on the PATH: this Python's pyspark must come first.
        "PATH": os.pathsep.join(
            (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
        ),
    }
    if spark is not None:
        # Tells spark-submit where PySpark is. Without it, spark-submit starts Python to find out.
        variables["SPARK_HOME"] = str(spark)
    if settings.libraries is not None:
        # Python searches the pipeline's own libraries before installed packages.
        variables["PYTHONPATH"] = _first_of_path(str(settings.libraries))
    for name, default in _ALLOCATORS.items():
        variables[name] = os.environ.get(name, default)
    return variables


def _first_of_path(folder: str) -> str:
    """Return PYTHONPATH with a folder at its beginning."""
    own = os.environ.get("PYTHONPATH")
    paths = [folder]
    for path in own.split(os.pathsep) if own else ():
        if path != folder:
            paths.append(path)
    return os.pathsep.join(paths)


def launcher_options(spark: Path | None) -> list[str]:
    """Return Java's options for the short-lived JVM that assembles the driver's command.

    `spark` is Spark's folder.

    The launcher's class path has all of Spark's jars, and Java would open one after the other until
    it finds the launcher. So the launcher's jar is searched first.
    """
    options = [_QUICK_COMPILER, "-XX:+UseSerialGC"]
    if spark is not None:
        for jar in (spark / "jars").glob("spark-launcher_*.jar"):
            # Spark's script splits the options at spaces, and quotes do not help.
            if shlex.quote(str(jar)) == str(jar):
                options.append(f"-Xbootclasspath/a:{jar}")
    return options


def _heap(settings: Settings, master: str, runs_at_once: int, *, delta: bool) -> dict[str, str]:
    """Return the Spark setting for the heap of the JVM, unless the user has set it.

    On a cluster, the heap takes the results of many executors, and with Delta tables, the JVM
    writes their rows. So in both cases it keeps Spark's default.
    """
    name = "spark.driver.memory"
    if name in settings.spark_conf:
        return {name: settings.spark_conf[name]}
    if os.environ.get("SPARK_DRIVER_MEMORY") or delta or not is_local(master):
        return {}
    return {name: f"{runs_at_once * heap_mb(settings.memory)}m"}


def delta_conf(settings: Settings) -> dict[str, str]:
    """Return the Spark settings for Delta tables.

    They keep the extensions that SLUICE_SPARK_CONF sets.
    """
    own = settings.spark_conf.get(_EXTENSIONS, "").split(",")
    extensions = dict.fromkeys([*own, DELTA_CONF[_EXTENSIONS]])
    return {**DELTA_CONF, _EXTENSIONS: ",".join(filter(None, extensions))}


def delta_jars(settings: Settings) -> list[Path]:
    """Return the jars of Delta Lake for the installed Spark.

    Raise SettingsError if set-up has not downloaded them, and PreflightError if there are none.
    """
    # Imported only here, because only runs with Delta tables need the module.
    from sluice.provision.jars import delta_bundle

    folder = settings.jars / delta_bundle()
    jars = sorted(folder.glob("*.jar"))
    if not jars:
        raise SettingsError(
            f"There are no jars in {folder}.",
            next_step="Run: python -m sluice.provision jars",
        )
    return jars


def is_noise(line: str) -> bool:
    """Return whether a line is Java's warning that Spark uses an incubator module.

    Java prints it at every start.
    """
    return line.strip() == "WARNING: Using incubator modules: jdk.incubator.vector"


@contextmanager
def without_noise() -> Iterator[None]:
    """Keep Java's warning about incubator modules out of the standard error.

    Spark's launcher always adds the module, and no option of Java turns the warning off. A process
    that outlives the block writes through the filter until it ends.
    """
    kept, (reader, writer) = os.dup(2), os.pipe()

    def copy() -> None:
        with os.fdopen(reader, "rb") as lines, os.fdopen(kept, "wb", buffering=0) as target:
            for line in lines:
                if not is_noise(line.decode(errors="replace")):
                    target.write(line)

    os.dup2(writer, 2)
    os.close(writer)
    Thread(target=copy, daemon=True).start()
    try:
        yield
    finally:
        os.dup2(kept, 2)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a temporary folder for the driver's JVM and for Spark. It is removed after the block.

    A JVM that is killed does not remove its temporary files: about 15 MB of libraries, and all
    shuffle files.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-run-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
