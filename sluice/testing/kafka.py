"""The real Apache Kafka broker as one process of this machine: no Docker, ready in seconds, gone when stopped.

`EmbeddedKafka` is for tests; `start` and `stop` are for a broker that outlives its command. Both listen on
the loopback address only, and keep everything in one folder: data, log, configuration, and who runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

import msgspec
import psutil
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sluice.errors import PreflightError
from sluice.provision.checks import LOOPBACK, check_port, find_java, free_port
from sluice.provision.jars import Bundle
from sluice.provision.jars import folder as jars_folder
from sluice.settings import settings

DEFAULT_PORT = 9092
START_SECONDS = 60.0
STOP_SECONDS = 20.0
_LOADING_SECONDS = 5.0

_JVM = ["-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true"]
_LOGGING = [
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    # Kafka sets log levels of a log4j that is not in use here; that it has no configuration is no news.
    "-Dlog4j2.statusLoggerLevel=OFF",
]

# One node has one copy of everything; few partitions start fast. Records are never dropped for their age:
# Kafka reckons it by the event's time, and a topic of last year's orders would be emptied at once.
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
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
"""


@dataclass(frozen=True)
class Broker:
    """A broker that runs: its process and its port."""

    pid: int
    port: int

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"


class EmbeddedKafka:
    """A broker for the length of a `with` block, in `folder`, on `port` or any free one.

    The folder's data stay when it stops, so it can be started again where it was.
    """

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.bootstrap = f"{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start, and return when it answers; PreflightError with the end of its log if it does not."""
        start(self.folder, self.port)

    def stop(self) -> None:
        """Stop and wait until it is gone; does nothing if it does not run."""
        stop(self.folder)

    def create_topics(self, partitions: Mapping[str, int], config: Mapping[str, str] | None = None) -> None:
        """Make the topics that are not there yet, each with so many partitions."""
        create_topics(self.bootstrap, partitions, config)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(folder: Path, port: int = DEFAULT_PORT) -> Broker:
    """Start a broker that keeps its data in `folder`, and return when it answers.

    It runs on after this process ends, until `stop(folder)`. PreflightError if one runs there already, the
    port is taken, Java or the jars are missing, or the broker ends or stays silent: then with its log's end.
    """
    folder = folder.absolute()
    if found := running(folder):
        raise PreflightError(
            f"A broker of {folder} runs already, on port {found.port} (process {found.pid}).",
            next_step="Use it, or stop it first: sluice kafka stop.",
        )
    check_port(port, purpose="Kafka", next_step=f"Choose another: sluice kafka start --port {free_port()}.")
    configuration = _write_configuration(folder, port)
    java = _java_command()
    if not (folder / "data" / "meta.properties").is_file():
        _format(java, folder, configuration)
    # Kept from now on, so that whatever happens next the process can be found and stopped.
    pid = _spawn([*java, "kafka.Kafka", str(configuration)], folder / "broker.log")
    broker = Broker(pid, port)
    (folder / "broker.json").write_bytes(msgspec.json.encode(broker))
    try:
        _wait_until_ready(broker, folder)
    except BaseException:
        stop(folder)
        raise
    return broker


def stop(folder: Path) -> Broker | None:
    """Stop the broker of `folder` and wait until it is gone; returns which, or None if none ran.

    It is asked to end, and killed only if it has not ended after 20 seconds.
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
    """Return the broker that runs on `folder`; None if none does, even when another process has its number now."""
    folder = folder.absolute()
    try:
        broker = msgspec.json.decode((folder / "broker.json").read_bytes(), type=Broker)
        command = _command_line(psutil.Process(broker.pid))
    except (OSError, msgspec.DecodeError, psutil.Error):
        return None
    return broker if command[-2:] == ["kafka.Kafka", str(_configuration_path(folder))] else None


def _command_line(process: psutil.Process) -> list[str]:
    """The arguments of a process. One that was just spawned has none until its program is loaded."""
    until = time.monotonic() + _LOADING_SECONDS
    while not (found := process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
        time.sleep(0.005)
    return found


def create_topics(bootstrap: str, partitions: Mapping[str, int], config: Mapping[str, str] | None = None) -> None:
    """Make the topics that are not there yet, each with so many partitions and `config`; KafkaException if refused."""
    topics = [NewTopic(topic, count, 1, config=dict(config or {})) for topic, count in partitions.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # it must outlive the answers
    for made in admin.create_topics(topics).values():
        try:
            made.result()
        except KafkaException as refused:
            if refused.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def _configuration_path(folder: Path) -> Path:
    return folder / "server.properties"


def _write_configuration(folder: Path, port: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = _configuration_path(folder)
    text = _CONFIGURATION.format(host=LOOPBACK, port=port, controller=free_port(), data=folder / "data")
    path.write_text(text)
    return path


def _java_command() -> list[str]:
    jars = jars_folder(Bundle.BROKER, settings().home / "jars")
    return [str(find_java().path), *_JVM, *_LOGGING, "-cp", f"{jars}/*"]


def _format(java: list[str], folder: Path, configuration: Path) -> None:
    """Give the empty data folder its cluster's id, as Kafka's own tool does."""
    log = folder / "format.log"
    pid = _spawn([*java, "kafka.tools.StorageTool", "format", "-t", uuid4().hex, "-c", str(configuration)], log)
    if psutil.Process(pid).wait():
        raise PreflightError(f"Kafka could not lay out {folder}: {_tail(log)}", next_step="See the log's end above.")


def _spawn(command: list[str], log: Path) -> int:
    """Start `command` in a session of its own, so that a Ctrl-C meant for us does not reach it; returns its pid."""
    to_log = (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    from_nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    actions = [from_nothing, to_log, (os.POSIX_SPAWN_DUP2, 1, 2)]
    return os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True)


def _wait_until_ready(broker: Broker, folder: Path) -> None:
    until = time.monotonic() + START_SECONDS
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 100})
    while time.monotonic() < until:
        if running(folder) is None:
            raise _not_ready("Kafka ended at its start", folder)
        try:
            if admin.list_topics(timeout=0.5).brokers:
                return
        except KafkaException:
            time.sleep(0.05)
    raise _not_ready(f"Kafka did not answer within {START_SECONDS:.0f} s", folder)


def _not_ready(what: str, folder: Path) -> PreflightError:
    log = folder / "broker.log"
    return PreflightError(f"{what}; {log} ends:\n{_tail(log)}", next_step="Mend that, or use another --folder.")


def _tail(log: Path, lines: int = 15) -> str:
    said = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith("\tat ")]
    return "\n".join(said[-lines:]) or "(it is empty)"
