"""The demo leaves nothing behind, however it ends. That its answers are right is told by `make demo EXIT=1`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.settings import settings
from sluice.testing.kafka import running
from sluice.testing.platform import clear
from sluice.testing.service import members
from tests.ports import free_port

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "jars").symlink_to(settings().jars.parent)
    yield tmp_path / "demo"
    clear(tmp_path / "demo")


@pytest.fixture
def demo(home: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo, on its way as far as Airflow's start."""
    process = start(home)
    assert process.stdout is not None
    for line in process.stdout:
        if "Start Airflow  loading" in line:
            break
    yield process
    process.kill()
    process.wait()


def start(home: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sluice.cli", "demo", "--exit", "--port", str(free_port())]
    environment = {**os.environ, "SLUICE_HOME": str(home.parent)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def sessions(home: Path) -> set[int]:
    return {int(line.split()[0]) for line in (home / "sessions").read_text().splitlines()}


def stops(demo: subprocess.Popen[str], home: Path, number: signal.Signals) -> None:
    """Send the signal; everything that was started must end."""
    assert members(sessions(home))
    assert running(home / "kafka")
    demo.send_signal(number)
    said, _ = demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert "every process that was started is gone" in said
    assert "Traceback" not in said
    assert members(sessions(home)) == []
    assert running(home / "kafka") is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_halfway_stopped_it_stops_what_it_started(
    demo: subprocess.Popen[str], home: Path, number: signal.Signals
) -> None:
    stops(demo, home, number)


def test_what_a_killed_demo_has_left_is_cleared_by_the_next(demo: subprocess.Popen[str], home: Path) -> None:
    demo.kill()
    demo.wait()
    left = sessions(home)
    assert members(left)
    assert running(home / "kafka")
    clear(home)
    assert members(left) == []
    assert not home.exists()


def test_of_two_in_one_home_the_second_is_refused_and_the_first_goes_on_until_its_terminal_is_closed(
    demo: subprocess.Popen[str], home: Path
) -> None:
    second = start(home)
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "runs in" in said
    assert demo.poll() is None
    stops(demo, home, signal.SIGHUP)
