"""The demo: sets up Kafka and Airflow, runs an example's pipeline, and checks the results."""

from __future__ import annotations

import fcntl
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.markup import escape

from sluice.client import Client
from sluice.errors import EngineError, PreflightError
from sluice.examples.example import (
    Example,
    Results,
    create_example_topics,
    produce_samples,
    read_samples,
)
from sluice.examples.progress import Steps
from sluice.local.airflow_client import Airflow
from sluice.local.platform import ROOT, LocalPlatform, clear, write_secret
from sluice.provision.machine_checks import check_memory, check_port, find_java, free_port
from sluice.settings import settings
from sluice.topology import drawing, load_pipeline

SEED = 7
_USUAL_PORT = 8080
_RUN_SECONDS = 1_800.0
"""How long the demo waits for a run, which takes half a minute on a quiet machine, and minutes on a
busy one."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WIDTH = 400


@dataclass(frozen=True)
class Options:
    """The demo's options.

    By default, Airflow uses its default port or, if that is in use, a free port.
    """

    leave: bool = False
    """Exit after the queries instead of waiting for Ctrl-C."""
    port: int | None = None


@dataclass(frozen=True)
class Outcome:
    """The outcome: the expected results, the number of differing entries by store or topic, and answers to queries."""

    expected: Results
    differences: dict[str, int]
    answers: list[tuple[str, str, bool | None]]
    """Path, text of the answer, and whether the answer is as expected; None if the expected answer
    is unknown."""

    @property
    def is_right(self) -> bool:
        """Whether all results are as expected."""
        return not self.differences and not any(right is False for *_, right in self.answers)


def demo(example: Example, options: Options, console: Console) -> int:
    """Run an example's demo.

    Returns 0 if all results are right, 1 if not, and 130 if the demo was interrupted.
    """
    home = settings().home / "demo"
    try:
        with _alone(home), _stoppable():
            return _demo(example, options, home, console)
    except KeyboardInterrupt:
        return 130


def _demo(example: Example, options: Options, home: Path, console: Console) -> int:
    began = time.monotonic()
    with Steps(console, began) as steps, steps.step("Check this machine") as step:
        clear(home)
        platform = _platform(options, home)
        step.conclude(
            f"Java {find_java().release}, Airflow on port {platform.port}, Kafka on {platform.kafka.port}"
        )
    try:
        with Steps(console, began) as steps:
            _start(example, platform, steps)
            with platform.as_user() as airflow:
                _wait_for_run(example.name, platform, airflow, steps)
                outcome = _compare(example, platform, airflow, steps)
        _print_outcome(platform, outcome, console)
        _print_places(
            _files(example, platform) if options.leave else _places(example, platform), console
        )
        verdict = (
            "[green]all results are right[/]"
            if outcome.is_right
            else "[red]some results are wrong[/]"
        )
        console.print(f"\n{verdict}, {time.monotonic() - began:.0f} s after the start\n")
        if not options.leave:
            _stay(platform, console)
        return 0 if outcome.is_right else 1
    finally:
        # Even after another Ctrl-C, no process may go on.
        with (
            _uninterrupted(),
            Steps(console, began) as steps,
            steps.step("Stop Airflow, Spark and Kafka") as step,
        ):
            platform.stop()
            step.conclude("all processes have ended")


def _platform(options: Options, home: Path) -> LocalPlatform:
    check_memory()
    return LocalPlatform(home, port=options.port or _usual_port())


def _usual_port() -> int:
    try:
        check_port(_USUAL_PORT)
    except PreflightError:
        return free_port()
    return _USUAL_PORT


def _start(example: Example, platform: LocalPlatform, steps: Steps) -> None:
    def kafka() -> None:
        with steps.step("Start Kafka"):
            platform.start_kafka()
        with steps.step("Send sample records") as step:
            create_example_topics(platform.kafka_config, example)
            samples = example.samples(example.count, SEED, example.start_ms)
            sent = produce_samples(platform.kafka_config, example, samples)
            step.conclude(", ".join(f"{number:,} to {topic}" for topic, number in sent.items()))

    def database() -> None:
        with steps.step("Create Airflow's database"):
            platform.lay_out_airflow()

    with ThreadPoolExecutor(2) as together:
        # Filling Kafka and creating Airflow's database take seconds each, and do not depend on each
        # other.
        for task in [together.submit(kafka), together.submit(database)]:
            task.result()
    with steps.step("Start Airflow") as step:
        platform.start_airflow()
        platform.wait_for_airflow(step.say)
        step.conclude(platform.url)


def _wait_for_run(dag: str, platform: LocalPlatform, airflow: Airflow, steps: Steps) -> None:
    """Wait for the run that the records trigger, and report its progress."""
    with steps.step(f"Wait for the DAG {dag} to start by itself") as step:
        for _ in platform.ticks(_RUN_SECONDS, f"Airflow has not started a run of the DAG {dag}"):
            if runs := airflow.runs(dag):
                break
            step.say("its trigger compares the topics' end offsets with the ledger")
        step.conclude(runs[0]["run_type"].replace("_", " "))
    run = runs[0]["dag_run_id"]
    with steps.step("Run the pipeline with spark-submit until all records are read") as step:
        for _ in platform.ticks(
            _RUN_SECONDS, f"The run {run}, which runs spark-submit, has not ended"
        ):
            state = next(
                dag_run["state"] for dag_run in airflow.runs(dag) if dag_run["dag_run_id"] == run
            )
            tasks = ", ".join(
                f"task {task['task_id']} {task['state'] or 'waits'}"
                for task in airflow.tasks(dag, run)
            )
            if state in ("success", "failed"):
                step.conclude(tasks)
                break
            step.say(tasks or state)
        if state == "failed":
            raise EngineError(
                f"The run {run} failed.", next_step=f"See its log in {platform.home}/airflow/logs."
            )


def _compare(example: Example, platform: LocalPlatform, airflow: Airflow, steps: Steps) -> Outcome:
    with steps.step(
        "Compute the results without Sluice, and compare every store and output"
    ) as step:
        expected = example.expected(read_samples(platform.kafka_config, example))
        actual = example.actual(platform.kafka_config, expected)
        with Client(platform.url, token=airflow.token) as client:
            for store in expected.stores:
                rows: list[tuple[Any, Any]] = []
                for entry in client.range(store, pipeline=example.name):
                    key = (
                        (entry.key, _ms(entry.start), _ms(entry.end)) if entry.start else entry.key
                    )
                    rows.append((key, entry.value))
                actual.stores[store] = example.actual_store(store, rows)
        differences = expected.differences(actual)
        step.conclude(
            f"{expected.size:,} entries and records, {sum(differences.values())} differences"
        )
    expected_answers = example.answers(expected)
    answers: list[tuple[str, str, bool | None]] = []
    for path in example.paths:
        right = airflow.json(path) == expected_answers[path] if path in expected_answers else None
        answers.append((path, airflow.ask(path).text, right))
    return Outcome(expected, differences, answers)


def _ms(time: datetime | None) -> int:
    return 0 if time is None else round(time.timestamp() * 1_000)


def _print_outcome(platform: LocalPlatform, outcome: Outcome, console: Console) -> None:
    with platform.as_user() as airflow:
        write_secret(platform.home / "authorization", f"Authorization: Bearer {airflow.token}\n")
    console.rule("Queries and answers")
    for path, text, right in outcome.answers:
        command = f"curl -s -H @{_short(platform.home)}/authorization '{platform.url}{path}'"
        console.print(f"[bold]{escape(command)}[/]", soft_wrap=True)
        mark = {None: "", True: "  [green]✓ matches the topic[/]", False: "  [red]✗ wrong[/]"}[
            right
        ]
        console.print(
            escape(text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…") + mark + "\n",
            soft_wrap=True,
        )
    for name, count in outcome.differences.items():
        console.print(
            f"[red]✗ {escape(name)}: {count} keys or records differ from the expected ones[/]"
        )
    console.rule("Dead letters, by reason")
    for reason, count in sorted(outcome.expected.dead_letters.items()):
        console.print(f"{count:6}  {reason}")
    if not outcome.expected.dead_letters:
        console.print("none")


def _print_places(places: dict[str, str], console: Console) -> None:
    console.rule("Look around")
    for name, value in places.items():
        console.print(f"[bold]{name:>9}[/]  {escape(value)}", soft_wrap=True)


def _places(example: Example, platform: LocalPlatform) -> dict[str, str]:
    """Addresses and files for the user to look at while Airflow and Kafka run.

    Writes the drawings of the topology.
    """
    return {
        "Airflow": platform.url,
        "log-in": f"{platform.admin.user}, password {platform.admin.password}",
        "page": f"{platform.url}/plugin/sluice",
        "Kafka": platform.kafka.bootstrap,
        **_files(example, platform),
    }


def _files(example: Example, platform: LocalPlatform) -> dict[str, str]:
    """Files for the user to look at. Writes the drawing of the topology."""
    pipeline = load_pipeline(ROOT / "spark_jobs", example.name)
    picture = platform.home / f"{pipeline.name}.svg"
    picture.write_text(drawing.svg(pipeline))
    return {
        "drawing": f"{_short(picture)}; also on the page",
        "logs": _short(platform.logs),
    }


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _stay(platform: LocalPlatform, console: Console) -> None:
    console.print("Press Ctrl-C to stop everything.")
    try:
        for _ in platform.ticks(float("inf"), "", pause_s=1.0):
            pass
    except KeyboardInterrupt:
        console.print()


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the lock of `home`, because two demos in one folder would stop each other."""
    home.parent.mkdir(parents=True, exist_ok=True)
    # The lock is not in the folder, because a demo removes the folder when it starts.
    with Path(f"{home}.lock").open("w") as lock:
        _lock(lock, home)
        yield


def _lock(lock: IO[str], home: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PreflightError(
            f"A demo is already running in {home}.",
            next_step="Stop it with Ctrl-C, or set SLUICE_HOME to another folder.",
        ) from None


@contextmanager
def _stoppable() -> Iterator[None]:
    """Treat the signals that end a process like Ctrl-C."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # A closed terminal sends SIGHUP, and a shutdown SIGTERM.
    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
