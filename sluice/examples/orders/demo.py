"""The demo: sets up Kafka and Airflow, runs the orders pipeline, and compares its answers with the topic."""

from __future__ import annotations

import fcntl
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.markup import escape

from sluice.errors import EngineError, PreflightError
from sluice.examples.orders import Totals, produce_orders, totals_of_topic
from sluice.examples.orders.demo_answers import Question, dead_letters, differences, questions, served
from sluice.examples.orders.steps import Steps
from sluice.provision.checks import check_memory, check_port, find_java, free_port
from sluice.settings import settings
from sluice.testing.airflow import Airflow
from sluice.testing.platform import ROOT, LocalPlatform, clear, write_secret
from sluice.topology import drawing, load_pipeline

ORDERS, STORES, SEED, BAD_SHARE = 10_000, 50, 7, 0.01
PIPELINE = "orders"
USUAL_PORT = 8080
RUN_SECONDS = 300.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WIDTH = 400


@dataclass(frozen=True)
class Options:
    """The demo's options. Without a port, Airflow gets its default port or, if that is taken, a free one."""

    leave: bool = False
    """Exit after the queries instead of waiting for Ctrl-C."""
    port: int | None = None


@dataclass(frozen=True)
class Outcome:
    """The result: what the topic implies, and what the REST view answered."""

    totals: Totals
    answers: list[tuple[Question, str, bool]]
    differences: dict[str, int]
    dead_letters: Counter[str]

    @property
    def is_right(self) -> bool:
        """Whether every answer matches the topic."""
        return (
            all(right for _, _, right in self.answers)
            and not any(self.differences.values())
            and self.dead_letters == self.totals.dead_letters
        )


def demo(options: Options, console: Console) -> int:
    """Run the demo. Returns 0 if all answers are right, 1 if not, and 130 if it was interrupted before."""
    home = settings().home / "demo"
    try:
        with _alone(home), _stoppable():
            return _demo(options, home, console)
    except KeyboardInterrupt:
        return 130


def _demo(options: Options, home: Path, console: Console) -> int:
    began = time.monotonic()
    with Steps(console) as steps, steps.step("Check this machine") as step:
        clear(home)
        platform = _platform(options, home)
        step.say(f"Java {find_java().release}, Airflow on port {platform.port}, Kafka on {platform.kafka.port}")
    try:
        with Steps(console) as steps:
            _start(platform, steps)
            with platform.as_user() as airflow:
                _wait_for_run(platform, airflow, steps)
                outcome = _compare(platform, airflow, steps)
        _tell(platform, outcome, time.monotonic() - began, console)
        if not options.leave:
            _stay(platform, console)
        return 0 if outcome.is_right else 1
    finally:
        with _uninterrupted(), Steps(console) as steps, steps.step("Stop Airflow, Spark and Kafka") as step:
            platform.stop()
            step.say("no process is left")


def _platform(options: Options, home: Path) -> LocalPlatform:
    check_memory()
    return LocalPlatform(home, port=options.port or _usual_port())


def _usual_port() -> int:
    try:
        check_port(USUAL_PORT)
    except PreflightError:
        return free_port()
    return USUAL_PORT


def _start(platform: LocalPlatform, steps: Steps) -> None:
    def kafka() -> None:
        with steps.step("Start Kafka"):
            platform.start_kafka()
        with steps.step(f"Send {ORDERS:,} orders from {STORES} stores, some of them invalid") as step:
            done = produce_orders(
                platform.kafka_config,
                count=ORDERS,
                stores=STORES,
                seed=SEED,
                bad_share=BAD_SHARE,
                progress=lambda sent: step.say(f"{sent:,} of {ORDERS:,}"),
            )
            step.say(f"{done.bad} are invalid")

    def database() -> None:
        with steps.step("Create Airflow's database"):
            platform.lay_out_airflow()

    with ThreadPoolExecutor(2) as together:
        for task in [together.submit(kafka), together.submit(database)]:
            task.result()
    with steps.step("Start Airflow") as step:
        platform.start_airflow()
        platform.wait_for_airflow(step.say)
        step.say(platform.url)


def _wait_for_run(platform: LocalPlatform, airflow: Airflow, steps: Steps) -> None:
    """Follow the run that the records start."""
    with steps.step(f"Wait for the DAG {PIPELINE} to start by itself") as step:
        for _ in platform.ticks(RUN_SECONDS, f"The DAG {PIPELINE} has not started"):
            if runs := airflow.runs(PIPELINE):
                break
            step.say("its trigger compares the topics' end offsets with the ledger")
        step.say(runs[0]["run_type"].replace("_", " "))
    run = runs[0]["dag_run_id"]
    with steps.step("Run the pipeline with spark-submit until all records are read") as step:
        for _ in platform.ticks(RUN_SECONDS, f"The run {run} has not ended"):
            state = next(dag_run["state"] for dag_run in airflow.runs(PIPELINE) if dag_run["dag_run_id"] == run)
            tasks = ", ".join(
                f"task {task['task_id']} {task['state'] or 'waits'}" for task in airflow.tasks(PIPELINE, run)
            )
            step.say(tasks or state)
            if state in ("success", "failed"):
                break
        if state == "failed":
            raise EngineError(f"The run {run} failed.", next_step=f"Its log is below {platform.home}/airflow/logs.")


def _compare(platform: LocalPlatform, airflow: Airflow, steps: Steps) -> Outcome:
    with steps.step("Compute the totals without Sluice, and compare all eight stores") as step:
        totals = totals_of_topic(platform.kafka_config)
        different = differences(totals.stores(), served(airflow))
        answers = [_ask(airflow, question) for question in questions(totals)]
        letters = dead_letters(platform.kafka_config)
        keys = sum(len(rows) for rows in totals.stores().values())
        step.say(f"{keys:,} keys and windows, {sum(different.values())} differences")
    return Outcome(totals, answers, different, letters)


def _ask(airflow: Airflow, question: Question) -> tuple[Question, str, bool]:
    answer: Any = airflow.json(question.path)
    return question, airflow.ask(question.path).text, question.is_right(answer)


def _tell(platform: LocalPlatform, outcome: Outcome, seconds: float, console: Console) -> None:
    with platform.as_user() as airflow:
        write_secret(platform.home / "authorization", f"Authorization: Bearer {airflow.token}\n")
    console.rule("Queries and answers")
    for question, text, right in outcome.answers:
        command = f"curl -s -H @{_short(platform.home)}/authorization '{platform.url}{question.path}'"
        console.print(f"[bold]{escape(command)}[/]", soft_wrap=True)
        mark = "" if question.expected is None else "  [green]✓ matches the topic[/]" if right else "  [red]✗ wrong[/]"
        console.print(escape(text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…") + mark + "\n", soft_wrap=True)
    _tell_wrong(outcome, console)
    console.rule("Dead letters, by reason")
    for reason, count in sorted(outcome.dead_letters.items()):
        console.print(f"{count:6}  {reason}")
    console.rule("Look around")
    for name, value in _places(platform).items():
        console.print(f"[bold]{name:>9}[/]  {escape(value)}", soft_wrap=True)
    verdict = "[green]all answers are right[/]" if outcome.is_right else "[red]some answers are wrong[/]"
    console.print(f"\n{verdict}, {seconds:.0f} s after the start\n")


def _tell_wrong(outcome: Outcome, console: Console) -> None:
    for store, count in outcome.differences.items():
        if count:
            console.print(f"[red]✗ store {store}: {count} keys or windows differ from the topic[/]")
    if outcome.dead_letters != outcome.totals.dead_letters:
        console.print(f"[red]✗ dead letters: the topic holds {dict(outcome.totals.dead_letters)}[/]")


def _places(platform: LocalPlatform) -> dict[str, str]:
    """Addresses and files to look at; writes the drawings of the topology."""
    pipeline = load_pipeline(ROOT / "spark_jobs", PIPELINE)
    picture, flowchart = platform.home / f"{PIPELINE}.svg", platform.home / f"{PIPELINE}.mmd"
    picture.write_text(drawing.svg(pipeline))
    flowchart.write_text(drawing.mermaid(pipeline))
    return {
        "Airflow": platform.url,
        "log-in": f"{platform.admin.user}, password {platform.admin.password}",
        "page": f"{platform.url}/plugin/sluice",
        "drawing": f"{_short(picture)} and, as Mermaid, {_short(flowchart)}; also on the page and in the DAG's docs",
        "Kafka": platform.kafka.bootstrap,
        "more": f"the DAG produce_sample_orders sends more orders; logs are in {_short(platform.logs)}",
    }


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _stay(platform: LocalPlatform, console: Console) -> None:
    console.print("Ctrl-C stops everything.")
    try:
        for _ in platform.ticks(float("inf"), "", pause_s=1.0):
            pass
    except KeyboardInterrupt:
        console.print()


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the lock of `home`: two demos in one folder would stop each other."""
    home.parent.mkdir(parents=True, exist_ok=True)
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
