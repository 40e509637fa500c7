"""The demo: sets up Kafka and Airflow, runs an example's pipeline, and checks the results."""

from __future__ import annotations

import fcntl
import json
import signal
import time
from collections.abc import Callable, Iterator
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
from sluice.examples.orders.orders_in_formats import CODECS, Codec, RegisteredOrders, write_pipeline
from sluice.examples.progress import Steps
from sluice.local.airflow_client import Airflow
from sluice.local.platform import ROOT, LocalPlatform, clear, write_secret
from sluice.local.registry import LocalRegistry
from sluice.provision.machine_checks import check_memory, check_port, find_java, free_port
from sluice.registry.http_registry import HttpRegistry
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
    format: str = ""
    """The format of the records, with a schema registry; empty for JSON without a registry."""


@dataclass(frozen=True)
class Outcome:
    """The expected results, the numbers of differing entries by store or topic, and answers."""

    expected: Results
    differences: dict[str, int]
    answers: list[tuple[str, str, bool | None]]
    """Path, text of the answer, and whether the answer is as expected; None if the expected answer
    is unknown."""

    @property
    def is_right(self) -> bool:
        """Whether all results are as expected."""
        wrong = [path for path, _, is_right in self.answers if is_right is False]
        return not self.differences and not wrong


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
        registry = _registry(options, platform)
        step.conclude(
            f"Java {find_java().release}, Airflow on port {platform.port}, Kafka on "
            f"{platform.kafka.port}"
        )
    try:
        with Steps(console, began) as steps:
            if registry is not None:
                codec = CODECS[options.format]
                example = _start_registry(registry, platform, codec, steps)
            _start(example, platform, steps)
            with platform.as_user() as airflow:
                _wait_for_run(example.name, platform, airflow, steps)
                outcome = _compare(example, platform, airflow, steps)
        _print_outcome(platform, outcome, console)
        places = _files(example, platform)
        if not options.leave:
            places = _addresses(platform) | places
        _print_places(places, console)
        verdict = "[red]some results are wrong[/]"
        if outcome.is_right:
            verdict = "[green]all results are right[/]"
        console.print(f"\n{verdict}, {time.monotonic() - began:.0f} s after the start\n")
        if not options.leave:
            _stay(platform, console)
        return 0 if outcome.is_right else 1
    finally:
        # No process may keep running, even after another Ctrl-C.
        with (
            _uninterrupted(),
            Steps(console, began) as steps,
            steps.step("Stop Airflow, Spark and Kafka") as step,
        ):
            platform.stop()
            if registry is not None:
                registry.stop()
            step.conclude("all processes have ended")


def _platform(options: Options, home: Path) -> LocalPlatform:
    check_memory()
    return LocalPlatform(home, port=options.port or _usual_port())


def _registry(options: Options, platform: LocalPlatform) -> LocalRegistry | None:
    """Return the schema registry, not started yet, and have the platform use it."""
    if not options.format:
        return None
    codec = CODECS[options.format]
    codec.require_packages()
    registry = LocalRegistry(platform.home / "registry")
    platform.environment["SLUICE_REGISTRY"] = json.dumps({"url": registry.url})
    platform.pipelines = platform.home / "pipelines"
    write_pipeline(ROOT / "spark_jobs", platform.pipelines, codec)
    return registry


def _start_registry(
    registry: LocalRegistry, platform: LocalPlatform, codec: Codec, steps: Steps
) -> Example:
    """Start the registry, register the schemas of the orders example, and return the example."""
    with steps.step("Start the schema registry, and register the schemas") as step:
        registry.start()
        orders = RegisteredOrders(HttpRegistry({"url": registry.url}), platform.pipelines, codec)
        orders.register()
        step.conclude(registry.url)
    return orders.example()


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
            counts = [f"{number:,} to {topic}" for topic, number in sent.items()]
            step.conclude(", ".join(counts))

    def database() -> None:
        with steps.step("Create Airflow's database"):
            platform.lay_out_airflow()

    with ThreadPoolExecutor(2) as threads:
        # Filling Kafka and creating Airflow's database take seconds each, and do not depend on each
        # other.
        for task in [threads.submit(kafka), threads.submit(database)]:
            task.result()
    with steps.step("Start Airflow") as step:
        platform.start_airflow()
        platform.wait_for_airflow(step.say)
        step.conclude(platform.url)


def _wait_for_run(dag: str, platform: LocalPlatform, airflow: Airflow, steps: Steps) -> None:
    """Wait for the run that the records trigger, and report its progress."""
    with steps.step(f"Wait for the DAG {dag} to start by itself") as step:
        runs: list[dict[str, Any]] = []
        for _ in platform.ticks(_RUN_SECONDS, f"Airflow has not started a run of the DAG {dag}"):
            runs = airflow.runs(dag)
            if runs:
                break
            step.say("its trigger compares the topics' end offsets with the ledger")
        step.conclude(runs[0]["run_type"].replace("_", " "))
    run = runs[0]["dag_run_id"]
    with steps.step("Run the pipeline with spark-submit until all records are read") as step:
        why = f"The run {run}, which runs spark-submit, has not ended"
        for _ in platform.ticks(_RUN_SECONDS, why):
            states = {dag_run["dag_run_id"]: dag_run["state"] for dag_run in airflow.runs(dag)}
            state = states[run]
            task_texts: list[str] = []
            for task in airflow.tasks(dag, run):
                task_texts.append(f"task {task['task_id']} {task['state'] or 'waits'}")
            tasks = ", ".join(task_texts)
            if state in ("success", "failed"):
                step.conclude(tasks)
                break
            step.say(tasks or state)
        if state == "failed":
            raise EngineError(
                f"The run {run} failed.", next_step=f"See its log in {platform.home}/airflow/logs."
            )


def _compare(example: Example, platform: LocalPlatform, airflow: Airflow, steps: Steps) -> Outcome:
    title = "Compute the results without Sluice, and compare every store and output"
    with steps.step(title) as step:
        expected = example.expected(read_samples(platform.kafka_config, example))
        actual = example.actual(platform.kafka_config, expected)
        with Client(platform.url, token=airflow.token) as client:
            for store in expected.stores:
                rows: list[tuple[Any, Any]] = []
                for entry in client.range(store, pipeline=example.name):
                    key: Any = entry.key
                    if entry.start and entry.end:
                        key = entry.key, _ms(entry.start), _ms(entry.end)
                    rows.append((key, entry.value))
                actual.stores[store] = example.actual_store(store, rows)
        differences = expected.differences(actual)
        step.conclude(
            f"{expected.size:,} entries and records, {sum(differences.values())} differences"
        )
    expected_answers = example.answers(expected)
    answers: list[tuple[str, str, bool | None]] = []
    for path in example.paths:
        is_right = None
        if path in expected_answers:
            is_right = airflow.json(path) == expected_answers[path]
        answers.append((path, airflow.ask(path).text, is_right))
    return Outcome(expected, differences, answers)


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1_000)


def _print_outcome(platform: LocalPlatform, outcome: Outcome, console: Console) -> None:
    with platform.as_user() as airflow:
        write_secret(platform.home / "authorization", f"Authorization: Bearer {airflow.token}\n")
    console.rule("Queries and answers")
    for path, answer, is_right in outcome.answers:
        command = f"curl -s -H @{_short(platform.home)}/authorization '{platform.url}{path}'"
        console.print(f"[bold]{escape(command)}[/]", soft_wrap=True)
        text = answer
        if len(text) > _WIDTH:
            text = f"{text[:_WIDTH]}…"
        text = escape(text)
        if is_right:
            text += "  [green]✓ matches the topic[/]"
        elif is_right is False:
            text += "  [red]✗ wrong[/]"
        console.print(f"{text}\n", soft_wrap=True)
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


def _addresses(platform: LocalPlatform) -> dict[str, str]:
    """Return addresses for the user to look at while Airflow and Kafka run."""
    return {
        "Airflow": platform.url,
        "log-in": f"{platform.admin.user}, password {platform.admin.password}",
        "page": f"{platform.url}/plugin/sluice",
        "Kafka": platform.kafka.bootstrap,
    }


def _files(example: Example, platform: LocalPlatform) -> dict[str, str]:
    """Draw the topology, and return files for the user to look at."""
    pipeline = load_pipeline(platform.pipelines, example.name)
    picture = platform.home / f"{pipeline.name}.svg"
    picture.write_text(drawing.svg(pipeline))
    return {
        "drawing": f"{_short(picture)}; also on the page",
        "logs": _short(platform.logs),
    }


def _short(path: Path) -> str:
    if path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return str(path)


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
    """Handle signals that end a process in the same way as Ctrl-C."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # A closed terminal sends SIGHUP, and a shutdown SIGTERM.
    with _handling_signals(stop):
        yield


@contextmanager
def _uninterrupted() -> Iterator[None]:
    with _handling_signals(signal.SIG_IGN):
        yield


@contextmanager
def _handling_signals(
    new_handler: Callable[[int, object], None] | signal.Handlers,
) -> Iterator[None]:
    before: dict[signal.Signals, Any] = {}
    for number in _SIGNALS:
        before[number] = signal.signal(number, new_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
