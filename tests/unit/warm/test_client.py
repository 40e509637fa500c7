"""Runs that are given to a warm driver, or start a driver of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.settings import OFF, START_WARM, USE_WARM, Settings
from sluice.spark_submit import UNFINISHED, Interrupted
from sluice.warm import client
from sluice.warm.client import LOST, DriverLost, locked, run_warm, warm_run
from sluice.warm.identity import driver_key, drivers_folder, socket_path
from sluice.warm.messages import send_request
from tests.support.fork_servers import Server, fork_server

MASTER = "local[2]"
FINISHES = "open(os.environ['SLUICE_FINISHED'], 'w').close()"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(Settings.read({"SLUICE_HOME": str(tmp_path)}), warm=USE_WARM)


@contextmanager
def driver(settings: Settings, **limits: float) -> Iterator[Server]:
    key = driver_key(settings, MASTER, delta=False)
    with fork_server(socket_path(settings, key), key, **limits) as started:
        yield started


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        (FINISHES, 0, ""),
        ("sys.exit(3)", 3, ""),
        ("os._exit(0)", 1, UNFINISHED),
    ],
)
def test_a_run_ends_as_it_does_in_a_driver_of_its_own(
    settings: Settings, code: str, status: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with driver(settings):
        assert run_warm(settings, {}, MASTER, [f"print('output'); {code}"]) == status
    printed = capfd.readouterr()
    # `os._exit` loses what is buffered.
    assert printed.out in ("output\n", "")
    # Clients of Kafka that other tests have left in this process write lines that begin with %.
    lines = [line for line in printed.err.splitlines() if not line.startswith("%")]
    assert "\n".join(lines).strip() == said


def test_a_run_has_the_settings_of_its_client(
    settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "print(os.environ['SLUICE_KAFKA'], os.environ['ADDED'])"
    variables = {"ADDED": "by the task"}
    with (
        driver(settings),
        warm_run(settings, {"a": "b"}, MASTER, [code], variables=variables) as run,
    ):
        assert run is not None
        assert run.wait() == 0
    assert capfd.readouterr().out == '{"a": "b"} by the task\n'


def test_the_lines_of_a_run_end_with_the_run(settings: Settings) -> None:
    # A process of its own session keeps the pipe open.
    code = (
        "print('a\\nb', flush=True)\n"
        "if not os.fork(): os.setsid(); time.sleep(2); os._exit(0)\n"
        "sys.stdout.write('c')"
    )
    with driver(settings), warm_run(settings, {}, MASTER, [code], is_piped=True) as run:
        assert run is not None
        begun = time.monotonic()
        assert [*run.lines()] == ["a", "b", "c"]
        assert run.wait() == 0
        assert time.monotonic() - begun < 1.5


def test_a_run_that_another_thread_ends_is_lost(settings: Settings) -> None:
    with driver(settings), warm_run(settings, {}, MASTER, ["time.sleep(60)"]) as run:
        assert run is not None
        threading.Timer(0.2, run.end).start()
        with pytest.raises(DriverLost):
            run.wait()


def test_a_run_whose_driver_ends_starts_its_own(
    settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    with driver(settings):
        code = "os.kill(os.getppid(), 9); time.sleep(60)"
        assert run_warm(settings, {}, MASTER, [code]) is None
    assert LOST in capfd.readouterr().err


INTERRUPTED = """
import signal
import sys
from pathlib import Path
from typing import Any
from dataclasses import replace
from sluice.settings import Settings
from sluice.spark_submit import Interrupted
from sluice.warm.client import run_warm
# A shell lets its background jobs, and so perhaps these tests, ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings = replace(Settings.read({"SLUICE_HOME": sys.argv[1]}), warm="use")
try:
    run_warm(settings, {}, "local[2]", ["print(os.getpid(), flush=True); time.sleep(60)"])
except Interrupted as interrupted:
    sys.exit(128 + interrupted.number)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_is_killed_when_its_command_ends(settings: Settings, number: int) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(settings.home)]
    with (
        driver(settings),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        run = int(process.stdout.readline())
        process.send_signal(number)
        # The pipe ends when the run has ended, too.
        assert process.stdout.read() == ""
        assert process.wait() == (-number if number == signal.SIGKILL else 128 + number)
        with pytest.raises(ProcessLookupError):
            os.kill(run, 0)


def test_a_signal_while_the_run_is_given_to_the_driver_is_not_lost(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A shell lets its background jobs, and so perhaps these tests, ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def send(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        send_request(*arguments)

    monkeypatch.setattr("sluice.warm.client.send_request", send)
    try:
        with driver(settings), pytest.raises(Interrupted):
            run_warm(settings, {}, MASTER, ["pass"])
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "change",
    [
        {"warm": OFF},
        {"memory": 2_000},
        {"spark_conf": {"spark.some": "value"}},
        {"jars": Path("/other")},
    ],
)
def test_a_run_that_needs_another_driver_starts_its_own(
    settings: Settings, change: dict[str, object]
) -> None:
    with driver(settings):
        other = replace(settings, **change)  # type: ignore[arg-type]
        assert run_warm(other, {}, MASTER, ["pass"]) is None


def test_a_run_on_a_cluster_starts_its_own_driver(settings: Settings) -> None:
    key = driver_key(settings, "spark://host:7077", delta=False)
    with fork_server(socket_path(settings, key), key):
        assert run_warm(settings, {}, "spark://host:7077", ["pass"]) is None


def test_a_run_does_not_wait_long_for_a_busy_driver(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_UNTIL_STARTED_S", 0.3)
    with (
        driver(settings, at_once=1),
        warm_run(settings, {}, MASTER, ["time.sleep(60)"]) as first,
    ):
        assert first is not None
        assert run_warm(settings, {}, MASTER, ["pass"]) is None


def test_a_driver_that_has_stopped_keeps_no_run_waiting(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_UNTIL_STARTED_S", 0.3)
    with driver(settings) as started:
        started.process.send_signal(signal.SIGSTOP)
        assert run_warm(settings, {}, MASTER, ["pass"]) is None


def test_a_socket_that_a_killed_driver_has_left_is_no_driver(settings: Settings) -> None:
    with driver(settings) as started:
        started.process.kill()
        started.process.wait()
        assert started.path.exists()
        assert run_warm(settings, {}, MASTER, ["pass"]) is None
    with driver(settings):
        assert run_warm(settings, {}, MASTER, [FINISHES]) == 0


def test_a_run_starts_a_driver_for_later_runs_unless_one_is_starting(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def start(command: list[str], variables: dict[str, str], log: Path) -> None:
        started.append(command)

    monkeypatch.setattr(client, "_spawn", start)
    starting = replace(settings, warm=START_WARM)
    key = driver_key(starting, MASTER, delta=False)
    with locked(starting, key) as is_free:
        assert is_free
        assert run_warm(starting, {}, MASTER, ["pass"]) is None
    assert not started
    assert run_warm(starting, {}, MASTER, ["pass"]) is None
    assert [command[1:] for command in started] == [["-m", "sluice", "warm", "--master", MASTER]]
    assert drivers_folder(starting).stat().st_mode & 0o777 == 0o700


def test_a_path_that_is_too_long_for_a_socket_has_no_driver(settings: Settings) -> None:
    far = replace(settings, home=settings.home / ("long" * 30))
    assert run_warm(far, {}, MASTER, ["pass"]) is None


def test_a_run_whose_environment_is_no_text_starts_its_own_driver(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD", "\udcff")
    with driver(settings):
        assert run_warm(settings, {}, MASTER, [FINISHES]) is None
