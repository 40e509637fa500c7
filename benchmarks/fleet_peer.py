"""The Kafka Streams programs beside which `fleet.py` measures: one process for each pipeline.

Each program is `CountByKey.java`, which needs a JDK. As many programs are started as fit into the
machine's free memory, and as can be started in some minutes. The compiled program and its jars stay
in `build/fleet-peer`.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sluice.provision.ivy import Module, fetch
from sluice.provision.machine_checks import find_java

SOURCE = Path(__file__).with_name("CountByKey.java")
JARS = (
    Module("org.apache.kafka", "kafka-streams", "4.4.0"),
    Module("org.slf4j", "slf4j-nop", "1.7.36"),
)
HEAP = "-Xmx256m"
BUILD = Path(__file__).parents[1] / "build" / "fleet-peer"
SPARE_GB = 3.0
"""The memory that stays free for the broker and the rest of the machine."""
_RUNNING = "RUNNING"
_START_S = 300.0
_LONGEST_START_S = 180.0
"""After this time, no more programs are started."""
_ROUND_S = 60.0
_AT_ONCE = 6
"""How many programs start at the same time."""


@dataclass
class Cost:
    """What programs have cost: in all, while idle, and while some of them got records."""

    programs: int = 0
    start_cpu_s: float = 0.0
    idle_cores: float = 0.0
    memory_gb: float = 0.0
    """The memory of all programs when idle; a page that several share counts once."""
    fed_cpu_s: float = 0.0
    """The CPU time of a fed program in a round, above that of the idle ones."""
    seconds: list[float] = field(default_factory=list)
    """For each fed program, the time from its last record until it has counted all of them."""


@dataclass
class Program:
    """A running program."""

    topic: str
    process: psutil.Process
    lines: list[str] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return _RUNNING in self.lines

    def counted_at(self, rounds: int) -> float | None:
        """Return when the program had counted the records of so many rounds, in epoch s."""
        times = [line for line in self.lines if line != _RUNNING]
        if len(times) < rounds:
            return None
        return int(times[rounds - 1]) / 1_000

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system


def measure(
    folder: Path,
    kafka: Mapping[str, str],
    topics: Sequence[str],
    active: int,
    rounds: int,
    records: int,
    idle_s: float,
    send: Callable[[str], None],
    say: Callable[[str], None],
) -> Cost:
    """Start programs, measure them while idle, and then `rounds` with `active` fed programs each.

    All programs of a round get their records at once. `send` writes the records of a round to a
    topic.
    """
    cost = Cost()
    with ExitStack() as stack:
        programs = stack.enter_context(started(folder, kafka, topics, records, say))
        cost.programs = len(programs)
        cost.start_cpu_s = cpu_of(programs)
        time.sleep(min(idle_s, 10.0))
        before, begun = cpu_of(programs), time.monotonic()
        time.sleep(idle_s)
        cost.idle_cores = (cpu_of(programs) - before) / (time.monotonic() - begun)
        cost.memory_gb = sum(program.process.memory_full_info().pss for program in programs) / 1e9
        fed: dict[str, int] = {}
        before, begun = cpu_of(programs), time.monotonic()
        for number in range(rounds):
            sent_at: list[tuple[Program, float]] = []
            for place in range(active):
                program = programs[(number * active + place) % len(programs)]
                send(program.topic)
                sent_at.append((program, time.time()))
                fed[program.topic] = fed.get(program.topic, 0) + 1
            for program, sent in sent_at:
                cost.seconds.append(_counted(program, fed[program.topic]) - sent)
            say(f"Kafka Streams: round {number + 1} of {rounds}")
        above = cpu_of(programs) - before - cost.idle_cores * (time.monotonic() - begun)
        cost.fed_cpu_s = above / (rounds * active)
    return cost


def cpu_of(programs: Sequence[Program]) -> float:
    return sum(program.cpu_s() for program in programs)


@contextmanager
def started(
    folder: Path,
    kafka: Mapping[str, str],
    topics: Sequence[str],
    records: int,
    say: Callable[[str], None],
) -> Iterator[list[Program]]:
    """Start a program for each topic, as long as memory is left, and stop them after the block."""
    command = _compiled()
    programs: list[Program] = []
    until = time.monotonic() + _LONGEST_START_S
    try:
        for topic in topics:
            if time.monotonic() > until:
                say(f"Only {len(programs)} Kafka Streams programs have started in time.")
                break
            if psutil.virtual_memory().available < SPARE_GB * 1e9:
                say(f"The memory is used up by {len(programs)} Kafka Streams programs.")
                break
            state = folder / "state" / topic
            arguments = [kafka["bootstrap.servers"], topic, str(state), str(records)]
            programs.append(_start(topic, [*command, *arguments]))
            _wait(lambda: sum(not each.is_running for each in programs) < _AT_ONCE, _START_S)
        _wait(lambda: all(each.is_running for each in programs), _START_S)
        say(f"{len(programs)} Kafka Streams programs run.")
        yield programs
    finally:
        for program in programs:
            with suppress(psutil.NoSuchProcess):
                program.process.kill()
        psutil.wait_procs([program.process for program in programs], 30)


def _compiled() -> list[str]:
    """Compile the program, unless it has been compiled. Return the command that runs it."""
    java = find_java().path
    compiled = BUILD / f"{SOURCE.stem}.class"
    if not compiled.exists() or compiled.stat().st_mtime < SOURCE.stat().st_mtime:
        shutil.rmtree(BUILD, ignore_errors=True)
        jars = fetch(java, JARS, BUILD / "ivy", transitive=True).values()
        class_path = ":".join(map(str, jars))
        compiler = [str(java.with_name("javac")), "-cp", class_path, "-d", str(BUILD), str(SOURCE)]
        subprocess.run(compiler, check=True)
    jars_kept = map(str, (BUILD / "ivy" / "jars").rglob("*.jar"))
    return [str(java), HEAP, "-cp", ":".join([str(BUILD), *jars_kept]), SOURCE.stem]


def _start(topic: str, command: Sequence[str]) -> Program:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    program = Program(topic, psutil.Process(process.pid))

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            program.lines.append(line.strip())

    threading.Thread(target=read, daemon=True).start()
    return program


def _counted(program: Program, rounds: int) -> float:
    """Wait until a program has counted the records of so many rounds. Return when, in epoch s."""
    _wait(lambda: program.counted_at(rounds) is not None, _ROUND_S)
    at = program.counted_at(rounds)
    assert at is not None
    return at


def _wait(is_done: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > until:
            raise SystemExit(f"A Kafka Streams program is not ready after {seconds:.0f} s.")
        time.sleep(0.02)
