"""The demo leaves nothing behind, however it ends. `make demo EXIT=1` checks its answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.errors import PreflightError
from sluice.examples.demo import _alone, _stoppable
from sluice.local.broker import running
from sluice.local.platform import clear
from sluice.local.service import members
from sluice.settings import settings
from tests.support.ports import free_port

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "jars").symlink_to(settings().jars)
    yield tmp_path / "demo"
    clear(tmp_path / "demo")


@pytest.fixture
def demo(home: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo that has started Kafka."""
    process = start(home)
    await_line(process, "✓ Start Kafka")
    with process:
        yield process
        process.kill()


def await_line(demo: subprocess.Popen[str], part: str) -> None:
    assert demo.stdout is not None
    assert any(part in line for line in demo.stdout), f"the demo ended before {part}"


def start(home: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sluice", "demo", "--exit", "--port", str(free_port())]
    environment = {**os.environ, "SLUICE_HOME": str(home.parent)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def sessions(home: Path) -> set[int]:
    return {int(line.split()[0]) for line in (home / "sessions").read_text().splitlines()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_that_ends_a_process_stops_the_demo(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), _stoppable():
        signal.raise_signal(number)


@pytest.mark.heavy  # `clear` also ends the demo that the fixture has started
def test_the_next_demo_cleans_up_after_a_killed_one(
    demo: subprocess.Popen[str], home: Path
) -> None:
    await_line(demo, "Start Airflow  waits for")
    demo.kill()
    demo.wait()
    left = sessions(home)
    assert members(left)
    assert running(home / "kafka")
    clear(home)
    assert members(left) == []
    assert not home.exists()


def test_a_second_demo_in_the_same_home_is_rejected(tmp_path: Path) -> None:
    with _alone(tmp_path / "demo"):
        with pytest.raises(PreflightError, match="already running in"), _alone(tmp_path / "demo"):
            pass
        with _alone(tmp_path / "another"):
            pass


@pytest.mark.heavy  # the end of a platform, in test_end_to_end.py, is the same
@pytest.mark.parametrize("line", ["✓ Start Kafka", "Start Airflow  waits for"])
def test_a_second_demo_in_the_same_home_is_rejected_and_a_signal_stops_the_first(
    demo: subprocess.Popen[str], home: Path, line: str
) -> None:
    second = start(home)
    output, _ = second.communicate(timeout=300)
    assert second.returncode == 1
    assert "already running in" in output
    assert demo.poll() is None
    assert running(home / "kafka")
    if line != "✓ Start Kafka":  # which the fixture has awaited
        await_line(demo, line)
    assert members(sessions(home))
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=300)
    assert demo.returncode == 130
    assert "all processes have ended" in output
    assert "Traceback" not in output
    assert members(sessions(home)) == []
    assert running(home / "kafka") is None
