"""The fork server of a warm driver, whose runs are Python code here, without a JVM."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from sluice.warm.client import DriverLost
from tests.support.fork_servers import Server, fork_server


@contextmanager
def server(folder: Path, **limits: float) -> Iterator[Server]:
    with fork_server(folder / "socket", "key", **limits) as running:
        yield running


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("server")) as running:
        yield running


def wait_for(path: Path, text: str = "\n") -> str:
    """Wait until a run has written the text. Return everything that it has written."""
    for _ in range(1_000):
        if path.exists() and text in path.read_text():
            return path.read_text()
        time.sleep(0.01)
    raise AssertionError(f"{path} does not contain {text!r}")


def wait_until_ended(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(10)


def test_a_run_has_the_environment_folder_umask_and_output_of_its_client(
    started: Server, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    code = (
        "print(dict(os.environ), os.getcwd(), oct(os.umask(0)), sys.stdin.read() == '')\n"
        "print('error', file=sys.stderr)"
    )
    with started.run(code, output, variables={"NAME": "of the run"}) as run:
        assert run.has_started()
        assert run.wait() == 0
    written = output.read_text()
    assert f"{{'NAME': 'of the run'}} {tmp_path} 0o27 True\n" in written
    assert "error\n" in written


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("raise ValueError('a mistake')", 1),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("threading.Thread(target=time.sleep, args=(60,)).start()", 0),
        ("os.close(0); os.close(1); os.close(2); os.closerange(3, 256)", 0),
    ],
)
def test_the_client_gets_the_status_of_the_runs_process(
    started: Server, tmp_path: Path, code: str, status: int
) -> None:
    assert started.status_of(code, tmp_path / "output") == status


def test_an_error_is_in_the_output_of_its_run(started: Server, tmp_path: Path) -> None:
    started.status_of("raise ValueError('a mistake')", tmp_path / "output")
    assert "ValueError: a mistake" in (tmp_path / "output").read_text()


def test_runs_share_nothing_that_they_change(started: Server, tmp_path: Path) -> None:
    started.status_of("sys.changed = os.environ['A'] = 'b'; os.chdir('/')", tmp_path / "first")
    started.status_of("print(hasattr(sys, 'changed'), os.environ)", tmp_path / "second")
    assert (tmp_path / "second").read_text() == "False environ({})\n"


def test_runs_go_on_at_the_same_time(tmp_path: Path) -> None:
    hangs = "print('hangs', flush=True); time.sleep(60)"
    with server(tmp_path, at_once=2) as running, running.run(hangs, tmp_path / "hanging") as first:
        assert first.has_started()
        wait_for(tmp_path / "hanging")
        assert running.status_of("pass", tmp_path / "second") == 0


def test_a_run_waits_if_as_many_runs_as_allowed_are_going_on(tmp_path: Path) -> None:
    with (
        server(tmp_path, at_once=1) as running,
        running.run("sys.stdin.read(); time.sleep(0.3); print('1')", tmp_path / "first") as first,
        running.run("print('2')", tmp_path / "second") as second,
    ):
        assert first.has_started()
        assert not (tmp_path / "second").read_text()
        assert first.wait() == 0
        assert second.has_started()
        assert second.wait() == 0


def test_a_run_is_killed_with_all_its_processes_when_its_client_ends(
    started: Server, tmp_path: Path
) -> None:
    # Spark's Python daemon makes a process group of its own, too.
    code = (
        "child = os.fork()\n"
        "if not child: os.setpgid(0, 0)\n"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    output = tmp_path / "output"
    with started.run(code, output) as run:
        assert run.has_started()
        pids = wait_for(output, "\n").split()
        while len(pids) < 2:
            pids = output.read_text().split()
    for pid in map(int, pids):
        wait_until_ended(pid)
        assert not psutil.pid_exists(pid)
    assert started.status_of("pass", tmp_path / "next") == 0


def test_processes_that_a_run_has_left_end_with_it(started: Server, tmp_path: Path) -> None:
    code = "if not os.fork(): print(os.getpid(), flush=True); time.sleep(60)\nelse: time.sleep(0.3)"
    assert started.status_of(code, tmp_path / "output") == 0
    left = int((tmp_path / "output").read_text())
    wait_until_ended(left)
    assert not psutil.pid_exists(left)


def test_all_runs_end_when_the_jvm_ends(tmp_path: Path) -> None:
    code = "print(os.getpid(), flush=True); time.sleep(60)"
    with (
        server(tmp_path) as running,
        running.run(code, tmp_path / "first") as first,
        running.run(code, tmp_path / "second") as second,
    ):
        pids = [int(wait_for(tmp_path / name)) for name in ("first", "second")]
        running.jvm.close()
        for run in (first, second):
            assert run.has_started()
            with pytest.raises(DriverLost):
                run.wait()
        assert running.process.wait(10) == 1
        assert not running.path.exists()
    for pid in pids:
        wait_until_ended(pid)


def test_a_run_that_fails_because_the_jvm_ends_is_lost_and_not_failed(tmp_path: Path) -> None:
    with (
        server(tmp_path) as running,
        running.run("sys.stdin.read(); time.sleep(0.2); sys.exit(1)", tmp_path / "out") as run,
    ):
        assert run.has_started()
        time.sleep(0.3)
        running.jvm.close()
        with pytest.raises(DriverLost):
            run.wait()


def test_runs_die_with_the_fork_server(tmp_path: Path) -> None:
    code = "print(os.getpid(), flush=True); time.sleep(60)"
    with server(tmp_path) as running, running.run(code, tmp_path / "output") as run:
        pid = int(wait_for(tmp_path / "output"))
        running.process.kill()
        assert run.has_started()
        with pytest.raises(DriverLost):
            run.wait()
        wait_until_ended(pid)
        assert not psutil.pid_exists(pid)


def test_a_stopped_run_neither_stops_the_others_nor_survives_its_client(
    started: Server, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with started.run("print(os.getpid(), flush=True); time.sleep(60)", output) as run:
        assert run.has_started()
        pid = int(wait_for(output))
        os.kill(pid, signal.SIGSTOP)
        assert started.status_of("pass", tmp_path / "other") == 0
    wait_until_ended(pid)
    assert not psutil.pid_exists(pid)


def test_a_request_for_another_driver_is_refused(started: Server, tmp_path: Path) -> None:
    with started.run("pass", tmp_path / "output", key="of another version") as run:
        assert not run.has_started()


@pytest.mark.parametrize("message", [b"", b"\x00", b"\xff" * 8, b"\x00\x00\x00\x02{}"])
def test_a_client_that_sends_no_request_does_not_affect_others(
    started: Server, tmp_path: Path, message: bytes
) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(started.path))
        connection.sendall(message)
        assert started.status_of("pass", tmp_path / "output") == 0


def test_a_client_that_ends_while_it_waits_has_no_run(tmp_path: Path) -> None:
    with server(tmp_path, at_once=1) as running:
        with running.run("time.sleep(0.5)", tmp_path / "first") as first:
            with running.run("print('started')", tmp_path / "second"):
                assert first.has_started()
            assert first.wait() == 0
        assert running.status_of("pass", tmp_path / "third") == 0
    assert not (tmp_path / "second").read_text()


def test_the_server_ends_after_its_runs(tmp_path: Path) -> None:
    with server(tmp_path, runs=2) as running:
        assert running.status_of("pass", tmp_path / "first") == 0
        assert running.path.exists()
        assert running.status_of("pass", tmp_path / "second") == 0
        assert running.process.wait(10) == 0
        assert not running.path.exists()


def test_the_server_ends_when_it_is_idle(tmp_path: Path) -> None:
    with server(tmp_path, idle_s=0.5) as running:
        assert running.status_of("time.sleep(0.7)", tmp_path / "first") == 0
        assert running.process.wait(10) == 0


def test_the_server_lets_its_last_run_end_when_it_is_old(tmp_path: Path) -> None:
    with server(tmp_path, age_s=0.2) as running:
        assert running.status_of("time.sleep(0.7); print('end')", tmp_path / "first") == 0
        assert running.process.wait(10) == 0
    assert (tmp_path / "first").read_text() == "end\n"


def test_the_server_lets_its_runs_end_when_its_command_has_ended(tmp_path: Path) -> None:
    code = "print('begun', flush=True); sys.stdin.read(); time.sleep(0.5); print('end')"
    output = tmp_path / "output"
    with server(tmp_path) as running, running.run(code, output) as run:
        wait_for(output)
        # The next driver may take over the path at once.
        running.path.unlink()
        running.path.touch()
        running.command.close()
        assert run.has_started()
        assert run.wait() == 0
        assert running.process.wait(10) == 0
        assert output.read_text() == "begun\nend\n"
        assert running.path.exists()


def test_the_server_of_an_ended_command_takes_no_runs(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        running.command.close()
        assert running.process.wait(10) == 0
        with pytest.raises(ConnectionRefusedError), running.run("pass", tmp_path / "output"):
            pass


def test_only_the_user_can_reach_the_server(started: Server) -> None:
    assert started.path.stat().st_mode & 0o777 == 0o600
    assert started.path.parent.stat().st_mode & 0o777 == 0o700


def test_the_server_opens_no_more_files_with_each_run(started: Server, tmp_path: Path) -> None:
    process = psutil.Process(started.process.pid)
    before = process.num_fds()
    for number in range(5):
        started.status_of("pass", tmp_path / f"{number}")
    # The server answers before it closes the run's files.
    for _ in range(100):
        if process.num_fds() == before:
            return
        time.sleep(0.05)
    raise AssertionError(f"{process.num_fds()} files are open, and {before} were at first.")


def test_a_run_and_its_client_may_end_at_the_same_moment(started: Server, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with started.run("print(os.getpid(), flush=True); time.sleep(60)", output) as run:
        assert run.has_started()
        pid = int(wait_for(output))
        started.process.send_signal(signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
    started.process.send_signal(signal.SIGCONT)
    assert started.status_of("pass", tmp_path / "next") == 0


def test_a_client_that_sends_nothing_does_not_keep_the_server(tmp_path: Path) -> None:
    with server(tmp_path, idle_s=0.5) as running, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(running.path))
        assert running.process.wait(10) == 0
