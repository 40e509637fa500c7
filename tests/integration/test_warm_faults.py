"""Faults of a warm driver with a real Spark: all other runs go on or start again, exactly."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from sluice.local.broker import EmbeddedKafka
from sluice.settings import settings
from sluice.warm.client import LOST, NO_DRIVER
from tests.integration.test_command_line import environment_of
from tests.integration.warm_fleets import Fleet, Result, warm_fleet

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(900)]

Started = subprocess.Popen[str]
AT_ONCE = 5
OTHER_VERSION = """
import sys
import sluice.version
sluice.version.__version__ = "0.0.1"
from sluice.commands.cli import app
app(["run", sys.argv[1]])
"""


@pytest.fixture(scope="module")
def living_fleet(
    tmp_path_factory: pytest.TempPathFactory, kafka: EmbeddedKafka
) -> Iterator[Callable[[], Fleet]]:
    """Return the fleet, after starting another driver if a test has killed the last one."""
    home = tmp_path_factory.mktemp("faults")
    fleets: list[Fleet] = []
    with ExitStack() as stack:
        variables = stack.enter_context(pytest.MonkeyPatch.context())
        variables.setenv("SLUICE_JARS", str(settings().jars))
        variables.setenv("SLUICE_HOME", str(home))
        settings.cache_clear()
        stack.callback(settings.cache_clear)

        def living() -> Fleet:
            if not fleets or fleets[-1].driver.poll() is not None:
                started = warm_fleet(home, kafka, "--at-once", str(AT_ONCE))
                fleets.append(stack.enter_context(started))
            return fleets[-1]

        yield living


@pytest.fixture
def fleet(living_fleet: Callable[[], Fleet]) -> Fleet:
    return living_fleet()


@pytest.fixture(scope="module")
def alone(living_fleet: Callable[[], Fleet]) -> Result:
    """The result of a pipeline that has run alone, in a driver of its own."""
    fleet = living_fleet()
    fleet.add("faults_alone")
    fleet.run("faults_alone", SLUICE_WARM="off")
    return fleet.result("faults_alone")


def start_waiting(fleet: Fleet, names: Sequence[str], go: Path) -> list[Started]:
    """Start runs on the warm driver, and wait until each of them has begun its batch.

    They wait for a file before they go on.
    """
    begun = [fleet.home / f"{name}.begun" for name in names]
    for name, file in zip(names, begun, strict=True):
        waits = f"while not Path({str(go)!r}).exists(): time.sleep(0.05)"
        fleet.add(name, f"Path({str(file)!r}).touch()\n    {waits}")
    runs = [fleet.start(name) for name in names]
    wait_for(begun, runs)
    return runs


def wait_for(files: Sequence[Path], runs: Sequence[Started]) -> None:
    while not all(file.exists() for file in files):
        for run in runs:
            assert run.poll() is None, run.communicate()[0]
        time.sleep(0.05)


def ended(run: Started) -> tuple[int, str]:
    output, _ = run.communicate(timeout=600)
    return run.returncode, output


@pytest.mark.parametrize("killed", ["keeper", "fork_server"])
def test_five_runs_whose_driver_is_killed_start_again(
    fleet: Fleet, fresh_name: Callable[[str], str], alone: Result, killed: str
) -> None:
    names = [fresh_name(f"flying{number}") for number in range(AT_ONCE)]
    go = fleet.home / fresh_name("go")
    runs = start_waiting(fleet, names, go)
    process: psutil.Process = getattr(fleet, killed)
    process.kill()
    go.touch()
    for name, run in zip(names, runs, strict=True):
        status, output = ended(run)
        assert (status, LOST in output) == (0, True), output
        assert fleet.result(name) == alone
    assert fleet.driver.wait(60) != 0


def test_a_driver_whose_command_is_killed_ends_after_its_runs(
    fleet: Fleet, fresh_name: Callable[[str], str], alone: Result
) -> None:
    names = [fresh_name(f"left{number}") for number in range(2)]
    go = fleet.home / fresh_name("go")
    runs = start_waiting(fleet, names, go)
    processes = fleet.processes
    fleet.driver.kill()
    late = fresh_name("late")
    fleet.add(late)
    assert NO_DRIVER in fleet.run(late)
    go.touch()
    for name, run in zip(names, runs, strict=True):
        status, output = ended(run)
        assert (status, LOST in output) == (0, False), output
        assert fleet.result(name) == alone
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert alive == []


def test_a_pipeline_that_eats_memory_is_killed_before_all_others(
    fleet: Fleet, fresh_name: Callable[[str], str], alone: Result
) -> None:
    eats, other = fresh_name("eats"), fresh_name("other")
    go, eaten = fleet.home / fresh_name("go"), fleet.home / "eaten"
    (run_of_other,) = start_waiting(fleet, [other], go)
    fleet.add(eats, f"eaten = b'x' * 600_000_000; Path({str(eaten)!r}).touch(); time.sleep(600)")
    run_of_eater = fleet.start(eats)
    wait_for([eaten], [run_of_other, run_of_eater])
    # The process that the system ends when its memory is used up.
    first = max(fleet.processes, key=lambda each: oom_score(each.pid))
    assert first.memory_info().rss > 600_000_000
    first.kill()
    status, output = ended(run_of_eater)
    assert (status, LOST in output) == (1, False), output
    go.touch()
    status, output = ended(run_of_other)
    assert (status, LOST in output) == (0, False), output
    assert fleet.result(other) == alone
    # The pipeline has left neither a lease nor rows.
    mend(fleet, eats)
    fleet.run(eats)
    assert fleet.result(eats) == alone


def oom_score(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/oom_score").read_text())
    except OSError:  # the process has ended
        return -1


def mend(fleet: Fleet, name: str) -> None:
    file = fleet.home / "pipelines" / f"{name}.py"
    code = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in code if "eaten" not in line))


def test_a_pipeline_that_hangs_and_one_that_ends_its_process_keep_no_other_from_running(
    fleet: Fleet, fresh_name: Callable[[str], str], alone: Result
) -> None:
    hanging = [fresh_name(f"hangs{number}") for number in range(3)]
    go = fleet.home / fresh_name("go")
    runs = start_waiting(fleet, hanging, go)
    for status in (0, 7):
        exits = fresh_name(f"exits{status}")
        fleet.add(exits, f"os._exit({status})")
        assert ended(fleet.start(exits))[0] == 1
        works = fresh_name("works")
        fleet.add(works)
        assert LOST not in fleet.run(works)
        assert fleet.result(works) == alone
    go.touch()
    for name, run in zip(hanging, runs, strict=True):
        assert ended(run)[0] == 0
        assert fleet.result(name) == alone


def test_threads_that_a_pipeline_leaks_end_with_its_run(
    fleet: Fleet, fresh_name: Callable[[str], str], alone: Result
) -> None:
    leaks = fresh_name("leaks")
    leak = "threading.Thread(target=time.sleep, args=(3_600,), daemon=True).start()"
    fleet.add(leaks, f"for _ in range(20): {leak}")
    file = fleet.home / "pipelines" / f"{leaks}.py"
    imports = "import os, sys, time"
    at_import = f"{imports}, threading\nfor _ in range(20): {leak}"
    file.write_text(file.read_text().replace(imports, at_import))
    assert LOST not in fleet.run(leaks)
    assert fleet.result(leaks) == alone
    for _ in range(2):
        fleet.send(leaks)
        assert LOST not in fleet.run(leaks)
    # The JVM may take a moment until it has waited for the processes that it has started.
    of_driver = {fleet.keeper.pid, fleet.fork_server.pid, fleet.jvm.pid}
    for _ in range(600):
        left = [process for process in fleet.processes if process.pid not in of_driver]
        if not left:
            break
        time.sleep(0.1)
    assert left == []
    assert fleet.fork_server.num_threads() == 1
    works = fresh_name("works")
    fleet.add(works)
    fleet.run(works)
    assert fleet.result(works) == alone


def test_a_client_of_another_version_starts_a_driver_of_its_own(
    fleet: Fleet, fresh_name: Callable[[str], str], alone: Result
) -> None:
    name = fresh_name("version")
    fleet.add(name)
    output = subprocess.check_output(
        [sys.executable, "-c", OTHER_VERSION, name],
        env=environment_of(fleet.home, fleet.kafka) | {"SLUICE_WARM": "use"},
        cwd=fleet.home,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert NO_DRIVER in output
    assert fleet.result(name) == alone
    # The driver still takes runs of its own version.
    fleet.send(name)
    assert NO_DRIVER not in fleet.run(name)
    assert fleet.read(name) == 20


def test_a_run_that_was_stopped_publishes_nothing_after_its_lease_was_taken_over(
    fleet: Fleet, fresh_name: Callable[[str], str], alone: Result
) -> None:
    name, go = fresh_name("zombie"), fleet.home / fresh_name("go")
    (zombie,) = start_waiting(fleet, [name], go)
    stopped = fleet.fork_server.children(recursive=True)
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    go.touch()
    # This run waits until the lease has not been renewed for a while.
    output = fleet.run(name, SLUICE_WARM="off")
    assert "lease taken over" in output
    assert fleet.result(name) == alone
    for process in stopped:
        process.send_signal(signal.SIGCONT)
    status, output = ended(zombie)
    assert (status, LOST in output) == (1, False), output
    assert fleet.result(name) == alone
    # The driver goes on.
    fleet.send(name)
    output = fleet.run(name)
    assert (NO_DRIVER in output, LOST in output) == (False, False)
    assert fleet.read(name) == 20
