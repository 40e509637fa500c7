"""Apache Kafka's broker as one local process, which starts in seconds and needs no Docker.

`EmbeddedKafka` is for tests; `start` and `stop` are for a broker that outlives the command that
starts it. Either broker listens on the loopback address only, and stores data, log, configuration
and process id in one folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import msgspec
import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sluice.errors import PreflightError
from sluice.kafka.topics import Topic, create_topics
from sluice.provision.class_archive import ARCHIVE_OPTIONS, archive_file, class_archive
from sluice.provision.jars import Bundle
from sluice.provision.jars import folder as jars_folder
from sluice.provision.machine_checks import LOOPBACK, check_port, find_java, free_port
from sluice.settings import settings

DEFAULT_PORT = 9092
START_SECONDS = 300.0
STOP_SECONDS = 20.0
_LOADING_SECONDS = 5.0

_JVM = ["-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true", *ARCHIVE_OPTIONS]
_QUICK = ["-XX:TieredStopAtLevel=1"]
"""Options with which a JVM compiles code once instead of optimizing it further."""
_LOGGING = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    # Kafka sets levels of log4j. Log4j is not used here, and would warn that it is not configured.
    "-Dlog4j2.statusLoggerLevel=OFF",
]

# A single node has one replica of everything; few internal partitions make it start quickly.
# Records are kept forever: Kafka deletes by the records' timestamps, and would immediately delete
# sample orders from earlier years. By default, an idle broker also writes a record every half
# second for other controllers, of which this broker has none.
_CONFIGURATION = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
metadata.max.idle.interval.ms=0
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
"""
_ADDED = ("listeners", "advertised.listeners", "listener.security.protocol.map")
"""Settings to which `config` adds values instead of replacing them."""


@dataclass(frozen=True)
class Broker:
    """A running broker: its address and its process."""

    pid: int
    port: int

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"


class EmbeddedKafka:
    """A Kafka broker that runs during a `with` block, on `port` or on any free port.

    Its data are in `folder`, and are kept when the broker stops, so that it can be started again
    with the same folder. A `quick` broker needs a third less processor time to start, but can
    handle fewer records per second. `config` has more settings of the broker. If `config` names
    listeners, the broker has them in addition to its default listener, which has no security.
    """

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        *,
        quick: bool = True,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.config = config
        self.quick = quick
        self.port = port or free_port()
        self.bootstrap = f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start the broker and wait until it answers.

        Raises PreflightError with the end of the broker's log if the broker does not answer.
        """
        start(self.folder, self.port, quick=self.quick, config=self.config)

    def stop(self) -> None:
        """Stop the broker, if it is running, and wait until its process has ended."""
        stop(self.folder)

    def create_topics(
        self,
        partitions: Mapping[str, int],
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create missing topics. `partitions`: topic → number of partitions."""
        topics = [Topic(topic, count, config=config or {}) for topic, count in partitions.items()]
        create_topics({"bootstrap.servers": self.bootstrap}, topics)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start(
    folder: Path,
    port: int = DEFAULT_PORT,
    *,
    quick: bool = False,
    config: Mapping[str, str] | None = None,
) -> Broker:
    """Start a broker with its data in `folder`, and wait until it answers.

    The broker keeps running after this process ends, until `stop(folder)`. Raises PreflightError if
    a broker already uses the folder, if the port is in use, or if Java or the jars are missing.
    Also raises PreflightError, with the end of the log, if the broker ends or does not answer.
    """
    folder = folder.absolute()
    if broker := running(folder):
        raise PreflightError(
            f"A broker is already running in {folder}, "
            f"on port {broker.port} (process {broker.pid}).",
            next_step="Use this broker, or stop it first: sluice kafka stop.",
        )
    check_port(
        port,
        purpose="Kafka",
        next_step=f"Choose another port: sluice kafka start --port {free_port()}.",
    )
    configuration = _write_configuration(folder, port, config or {})
    jars = jars_folder(Bundle.BROKER, settings().jars).resolve()
    java = [str(find_java().path), *_JVM, *_LOGGING, "-cp", f"{jars}/*"]
    classes = jars.parent, sorted(jars.glob("*.jar"))
    if not (folder / "data" / "meta.properties").is_file():
        # Kafka's format tool loads most of the classes that a broker loads at its start, and ends
        # at once. So it also writes the archive of these classes, in a second. With the archive, a
        # broker starts
        # in 2.9 CPU seconds instead of 4.2.
        with class_archive(*classes) as archive:
            _format([*java, *_QUICK, archive], folder, configuration)
    if (written := archive_file(*classes)).is_file():
        java.append(f"-XX:SharedArchiveFile={written}")
    # The process is recorded before anything else can fail, so that `stop` always finds it.
    options = _QUICK if quick else []
    pid = _spawn([*java, *options, "kafka.Kafka", str(configuration)], folder / "broker.log")
    broker = Broker(pid, port)
    (folder / "broker.json").write_bytes(msgspec.json.encode(broker))
    try:
        _wait_until_ready(broker, folder)
    except BaseException:
        stop(folder)
        raise
    return broker


def stop(folder: Path) -> Broker | None:
    """Stop the broker of `folder` and wait until it has ended.

    Returns the broker, or None if no broker was running. The process gets SIGTERM, and SIGKILL if
    it has not ended after 20 seconds.
    """
    folder = folder.absolute()
    broker = running(folder)
    if broker is not None:
        process = psutil.Process(broker.pid)
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
    (folder / "broker.json").unlink(missing_ok=True)
    return broker


def running(folder: Path) -> Broker | None:
    """Return the running broker of `folder`, or None.

    Checks that the process id does not belong to another program now.
    """
    folder = folder.absolute()
    try:
        broker = msgspec.json.decode((folder / "broker.json").read_bytes(), type=Broker)
        command = _command_line(psutil.Process(broker.pid))
    except (OSError, msgspec.DecodeError, psutil.Error):
        return None
    return broker if command[-2:] == ["kafka.Kafka", str(_configuration_path(folder))] else None


def _command_line(process: psutil.Process) -> list[str]:
    """Return the arguments of a process.

    A process that was just spawned has no arguments until its program is loaded.
    """
    until = time.monotonic() + _LOADING_SECONDS
    while (
        not (command := process.cmdline())
        and process.status() != psutil.STATUS_ZOMBIE
        and time.monotonic() < until
    ):
        time.sleep(0.005)
    return command


def _configuration_path(folder: Path) -> Path:
    return folder / "server.properties"


def _write_configuration(folder: Path, port: int, config: Mapping[str, str]) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreflightError(
            f"Cannot create the broker's folder {folder}: {error.strerror}.",
            next_step="Choose another with --folder, or set SLUICE_HOME.",
        ) from None
    path = _configuration_path(folder)
    text = _CONFIGURATION.format(
        host=LOOPBACK, port=port, controller=free_port(), data=folder / "data"
    )
    lines = dict(line.split("=", 1) for line in text.splitlines())
    for name, value in config.items():
        lines[name] = f"{lines[name]},{value}" if name in _ADDED else value
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


def _format(java: list[str], folder: Path, configuration: Path) -> None:
    """Format an empty data folder with a new cluster id, using Kafka's own tool."""
    log = folder / "format.log"
    pid = _spawn(
        [*java, "kafka.tools.StorageTool", "format", "-t", uuid4().hex, "-c", str(configuration)],
        log,
    )
    if psutil.Process(pid).wait():
        raise PreflightError(
            f"Kafka could not format the folder {folder}. Its log ends:\n{_tail(log)}",
            next_step="Correct the problem, or use another --folder.",
        )


def _spawn(command: list[str], log: Path) -> int:
    """Start `command` in a new session, so that it does not get this process's Ctrl-C.

    Returns the process id.
    """
    to_log = (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    from_nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    actions: list[tuple[Any, ...]] = [from_nothing, to_log, (os.POSIX_SPAWN_DUP2, 1, 2)]
    # The process may outlive this one. It must not hold files that this process has inherited, such
    # as the lock of `flock LOCK sluice kafka start`.
    for number in _inheritable_files():
        actions.append((os.POSIX_SPAWN_CLOSE, number))
    return os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True)


def _inheritable_files() -> list[int]:
    """Return the numbers of this process's open files that a child process would inherit."""
    numbers: list[int] = []
    for file in [*Path("/dev/fd").iterdir()]:
        number = int(file.name)
        # The list names the folder's own descriptor, too, which is closed by now.
        with suppress(OSError):
            if number > 2 and os.get_inheritable(number):
                numbers.append(number)
    return numbers


def _wait_until_ready(broker: Broker, folder: Path) -> None:
    until = time.monotonic() + START_SECONDS
    admin = AdminClient(
        {"bootstrap.servers": broker.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 100}
    )
    while time.monotonic() < until:
        if running(folder) is None:
            raise _not_ready("Kafka ended while it was starting", folder)
        try:
            if admin.list_topics(timeout=0.5).brokers:
                return
        except KafkaException:
            # The broker does not accept connections yet.
            time.sleep(0.05)
    raise _not_ready(f"Kafka did not answer within {START_SECONDS:.0f} s", folder)


def _not_ready(what: str, folder: Path) -> PreflightError:
    log = folder / "broker.log"
    return PreflightError(
        f"{what}. The log {log} ends:\n{_tail(log)}",
        next_step="Correct the problem, or use another --folder.",
    )


def _tail(log: Path, count: int = 15) -> str:
    text = log.read_text(errors="replace")
    lines = [line for line in text.splitlines() if not line.startswith("\tat ")]
    return "\n".join(lines[-count:]) or "(the log is empty)"
