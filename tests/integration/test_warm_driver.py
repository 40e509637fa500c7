"""Runs of several pipelines on a warm driver with a real Spark and a real broker."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from sluice.local.broker import EmbeddedKafka
from sluice.warm.client import LOST
from tests.integration.warm_fleets import Fleet, warm_fleet

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, kafka: EmbeddedKafka) -> Iterator[Fleet]:
    with warm_fleet(tmp_path_factory.mktemp("warm"), kafka) as fleet:
        yield fleet


@pytest.fixture
def name(fresh_name: Callable[[str], str]) -> str:
    return fresh_name("warm")


def test_runs_on_a_warm_driver_continue_one_another(fleet: Fleet, name: str) -> None:
    # The tasks have the run's environment and output.
    fleet.add(name, "print('from a task', os.environ['SHOWN'], flush=True)")
    first = fleet.run(name, SHOWN="first")
    assert ("from a task first" in first, "run done" in first, LOST in first) == (True, True, False)
    fleet.send(name)
    second = fleet.run(name, SHOWN="second")
    assert ("from a task second" in second, "from a task first" in second) == (True, False)
    assert fleet.read(name) == 20


def test_runs_of_different_pipelines_neither_wait_for_nor_harm_one_another(
    fleet: Fleet, fresh_name: Callable[[str], str]
) -> None:
    begun = fleet.home / "begun"
    hangs, crashes, fails, works = (
        fresh_name(name) for name in ("hangs", "crashes", "fails", "works")
    )
    fleet.add(hangs, f"Path({str(begun)!r}).touch(); time.sleep(300)")
    fleet.add(crashes, "os._exit(7)")
    fleet.add(works)
    fleet.add(fails)
    file = fleet.home / "pipelines" / f"{fails}.py"
    ends = "if 'SLUICE_FINISHED' in os.environ: os._exit(0)"
    file.write_text(
        file.read_text().replace("import os, sys, time", f"import os, sys, time\n{ends}")
    )
    with fleet.start(hangs) as hanging:
        while not begun.exists():
            assert hanging.poll() is None
            time.sleep(0.05)
        for bad in (fleet.start(crashes), fleet.start(fails)):
            output, _ = bad.communicate(timeout=120)
            assert bad.returncode == 1, output
        assert "run done" in fleet.run(works)
        hanging.send_signal(signal.SIGTERM)
        assert hanging.wait(60) == 128 + signal.SIGTERM
    assert [fleet.read(pipeline) for pipeline in (hangs, crashes, works)] == [0, 0, 10]
    # The pipeline that hung has left neither a lease nor a process.
    file = fleet.home / "pipelines" / f"{hangs}.py"
    file.write_text(re.sub("time.sleep.*", "", file.read_text()))
    fleet.run(hangs)
    assert fleet.read(hangs) == 10


@pytest.mark.heavy
def test_runs_whose_jvm_is_killed_go_on_with_their_own_drivers(
    fleet: Fleet, fresh_name: Callable[[str], str]
) -> None:
    """The last test of the module's driver."""
    names = [fresh_name(f"lost{number}") for number in range(2)]
    begun = fleet.home / "lost"
    begun.mkdir()
    for name in names:
        file = begun / name
        fleet.add(name, f"Path({str(file)!r}).touch(); time.sleep(0.3)")
    runs = [fleet.start(name) for name in names]
    while len([*begun.iterdir()]) < len(names):
        assert all(run.poll() is None for run in runs)
        time.sleep(0.05)
    with suppress(psutil.NoSuchProcess):
        fleet.jvm.kill()
    for run in runs:
        output, _ = run.communicate(timeout=180)
        assert (run.returncode, LOST in output) == (0, True), output
    assert [fleet.read(name) for name in names] == [10, 10]
    assert fleet.driver.wait(60) == 1
