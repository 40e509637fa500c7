"""The keeper of a JVM makes a session for each process, and cleans up after it."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.engine.shared_jvm import JvmKeeper, SharedConf, SharedJvm
from sluice.errors import EngineError
from sluice.settings import Settings


@dataclass
class FakeServer:
    """A server of py4j, and its builder."""

    session: FakeSession
    secret: str = ""
    is_shut_down: bool = False

    def authToken(self, secret: str) -> FakeServer:  # noqa: N802 (py4j's name)
        self.secret = secret
        return self

    def javaPort(self, port: int) -> FakeServer:  # noqa: N802
        return self

    def javaAddress(self, address: object) -> FakeServer:  # noqa: N802
        assert address == "loopback"
        return self

    def build(self) -> FakeServer:
        self.session.server = self
        return self

    def getJavaServer(self) -> Any:  # noqa: N802
        return SimpleNamespace(getListeningPort=lambda: 4_321)

    def shutdown(self) -> None:
        self.is_shut_down = True


@dataclass
class FakeSession:
    """A session of Spark in the JVM, with one running query."""

    server: FakeServer | None = None
    cancelled: list[str] = field(default_factory=list)

    def streams(self) -> Any:
        query = SimpleNamespace(runId=lambda: SimpleNamespace(toString=lambda: "run-1"))
        return SimpleNamespace(active=lambda: [query])

    def sparkContext(self) -> Any:  # noqa: N802
        return SimpleNamespace(cancelJobGroup=lambda group, _: self.cancelled.append(group))

    def interruptAll(self) -> None:  # noqa: N802
        self.cancelled.append("all")


class FakeSpark:
    """The first session, which makes others."""

    def __init__(self) -> None:
        self.sessions: list[FakeSession] = []
        address = SimpleNamespace(getLoopbackAddress=lambda: "loopback")
        jvm = SimpleNamespace(
            py4j=SimpleNamespace(ClientServer=SimpleNamespace(ClientServerBuilder=FakeServer)),
            java=SimpleNamespace(net=SimpleNamespace(InetAddress=address)),
        )
        self.sparkContext = SimpleNamespace(_jvm=jvm)
        self._jsparkSession = SimpleNamespace(newSession=self._new_session)

    def _new_session(self) -> FakeSession:
        self.sessions.append(FakeSession())
        return self.sessions[-1]


@pytest.fixture
def spark(tmp_path: Path) -> FakeSpark:
    fake: Any = FakeSpark()
    keeper = JvmKeeper(fake, tmp_path / "jvm")
    threading.Thread(target=keeper.serve, daemon=True).start()
    return fake  # type: ignore[no-any-return]


def ask(path: Path) -> tuple[socket.socket, int, str]:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    port, secret = json.loads(connection.recv(4_096))
    return connection, port, secret


def wait_until_cleaned_up(session: FakeSession) -> None:
    assert session.server is not None
    for _ in range(500):
        if session.server.is_shut_down:
            return
        time.sleep(0.01)
    raise AssertionError("The server of py4j was not shut down.")


def test_each_process_gets_a_session_and_a_secret_of_its_own(
    spark: FakeSpark, tmp_path: Path
) -> None:
    first, port, secret = ask(tmp_path / "jvm")
    second, _, other = ask(tmp_path / "jvm")
    with first, second:
        assert port == 4_321
        assert secret != other
        assert len({id(session) for session in spark.sessions}) == 2
        assert spark.sessions[0].server is not None
        assert spark.sessions[0].server.secret == secret


def test_the_keeper_cancels_what_a_process_has_left(spark: FakeSpark, tmp_path: Path) -> None:
    first, _, _ = ask(tmp_path / "jvm")
    second, _, _ = ask(tmp_path / "jvm")
    first.close()
    wait_until_cleaned_up(spark.sessions[0])
    assert spark.sessions[0].cancelled == ["run-1", "all"]
    # The other process goes on.
    assert spark.sessions[1].cancelled == []
    second.close()
    wait_until_cleaned_up(spark.sessions[1])


def test_a_process_whose_jvm_has_ended_gets_an_error(tmp_path: Path) -> None:
    jvm = SharedJvm(tmp_path / "jvm", {}, {})
    with pytest.raises(EngineError, match="JVM has ended"):
        jvm.session(Settings.read({}), "sluice orders")


class FakeConf:
    """The settings of a JVM, which are asked for by their prefix only."""

    def getAllWithPrefix(self, prefix: str) -> list[Any]:  # noqa: N802 (Spark's name)
        assert prefix == "spark.executorEnv."
        return [SimpleNamespace(_1=lambda: "ZONE", _2=lambda: "north")]


def test_tasks_get_the_variables_that_the_settings_of_the_jvm_name() -> None:
    java_conf: Any = FakeConf()
    assert SharedConf(_jconf=java_conf).getAll() == [("spark.executorEnv.ZONE", "north")]
