"""`sluice status` and `sluice retire`: the health of the pipelines."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import msgspec
import typer

from sluice.commands.activity_notes import user_name
from sluice.commands.command_arguments import PipelineName
from sluice.commands.console import errors_as_messages, out, wide
from sluice.settings import settings

if TYPE_CHECKING:
    from sluice.answers import FailureKind
    from sluice.kafka.unread_records import Lag, Offsets
    from sluice.observe.monitoring import LedgerFigures
    from sluice.state.ledger.failures import Failure
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.model import Snapshot
    from sluice.topology import Loaded
    from sluice.topology.pipeline import Pipeline

_KAFKA_SECONDS = 2.0
"""How long the command waits for a broker."""
_WATCH_SECONDS = 3.0
"""How long the command watches an open transaction; most producers end their transactions
earlier."""


def status(
    pipeline: Annotated[
        str, typer.Argument(metavar="[PIPELINE]", help="The pipeline's name; default: all.")
    ] = "",
) -> None:
    """Print the health of each pipeline and, if something is wrong, since when, and the next step.

    The worst comes first. What is wrong with several pipelines for the same reason is printed once.
    Exit with status 1 if something is wrong with a pipeline. Nothing is wrong with a pipeline that
    has never run, but the command says which of its topics do not exist yet.
    """
    from rich.table import Table
    from rich.text import Text

    from sluice.observe.health import by_cause, calm_of, severity, trouble_of
    from sluice.observe.host_checks import check_hosts
    from sluice.observe.monitoring import LedgerFigures
    from sluice.state.ledger.ledger import Ledger
    from sluice.topology import load_pipelines

    def is_shown(name: str) -> bool:
        return pipeline in ("", name)

    table = Table("pipeline", "status", "newest snapshot", box=None)
    failures: list[Failure] = []
    with errors_as_messages(), _naming(settings().ledger), Ledger.open(settings().ledger) as ledger:
        loaded = load_pipelines(settings().pipelines)
        check_hosts(ledger, LedgerFigures.read(ledger), settings())
        figures = LedgerFigures.read(ledger)
        of_files = _file_failures(ledger, loaded, figures)
        unseen = _unseen_files(ledger, loaded)
        kinds: dict[str, set[FailureKind]] = {}
        names = {each.name for each in loaded.pipelines}
        names |= {*figures.pipelines} | of_files.keys()
        if pipeline:
            _require_known(pipeline, names)
        inputs = Inputs.of(figures, loaded.pipelines, is_shown)
        for name in filter(is_shown, names):
            of_pipeline: list[Failure] = []
            for failure in inputs.failures_of(figures, name):
                # This command has loaded the files itself, so it ignores what other processes
                # recorded about files.
                if failure.kind != "file":
                    of_pipeline.append(failure)
            if name in of_files:
                of_pipeline.append(of_files[name])
            kinds[name] = {failure.kind for failure in of_pipeline}
            failures += of_pipeline
        for name in sorted(kinds, key=lambda name: (severity(kinds[name]), name)):
            trouble = trouble_of(kinds[name])
            health = (trouble or calm_of(figures, name) or "ok").replace("_", " ")
            color = "red" if trouble else "green"
            table.add_row(Text(name), Text(health, color), _newest(figures.snapshots.get(name)))
        wide.print(table)
    for same in by_cause(failures):
        out.print(f"✗ {_problem(same)}", markup=False, soft_wrap=True)
    for name in filter(is_shown, figures.pauses):
        pause = figures.pauses[name]
        out.print(f"· {name}: {pause}", markup=False, soft_wrap=True)
    for name in filter(is_shown, unseen):
        text = (
            f"{name}: no file in {settings().pipelines} defines it. Its newest run read "
            f"{unseen[name]}, in a folder that this host does not have. If the pipeline should not "
            "run again: "
            f"sluice retire {name}."
        )
        out.print(f"· {text}", markup=False, soft_wrap=True)
    for why, waiting in inputs.not_ready(kinds).items():
        out.print(f"· {', '.join(waiting)}: not started. {why}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if failures else 0)


def _require_known(pipeline: str, names: Collection[str]) -> None:
    """Raise NotFound if neither a file nor the ledger has a pipeline."""
    from sluice.errors import NotFound

    if pipeline not in names:
        raise NotFound(
            f"Neither the files in {settings().pipelines} nor the ledger have a pipeline "
            f"{pipeline!r}.",
            next_step=f"Known pipelines: {', '.join(sorted(names)) or 'none'}.",
        )


def retire(pipeline: PipelineName) -> None:
    """Record that a pipeline is no longer run. Nothing counts as wrong with it any more.

    Do this after you have removed the pipeline's file. The state stays. If the pipeline runs again,
    it is no longer retired.
    """
    from sluice.state.ledger.failures import KINDS
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        ledger.generations.retire(pipeline)
        ledger.failures.clear(pipeline, *KINDS)
        ledger.activities.add(pipeline, "retire", user_name())
    done = f"{pipeline} is retired. Its state can still be queried."
    out.print(done, markup=False, soft_wrap=True)


@contextmanager
def _naming(ledger: str) -> Iterator[None]:
    """Add the ledger's address, without secrets, to the error of a ledger that cannot be read."""
    from sluice.errors import StateError
    from sluice.support.masking import shown_url

    try:
        yield
    except StateError as error:
        detail = f"{error.detail} The ledger is at {shown_url(ledger)}."
        raise StateError(detail, next_step=error.next_step) from None


def _problem(same: Sequence[Failure]) -> str:
    """Describe the same failure of one or several pipelines."""
    failure = same[0]
    names = [failure.pipeline for failure in same]
    runs = {failure.run for failure in same}
    outlooks = {failure.outlook for failure in same}
    oldest = min(failure.at for failure in same)
    who = names[0]
    if len(names) > 1:
        who = f"{len(names)} pipelines ({', '.join(names)})"
    since = f"since {oldest:%Y-%m-%d %H:%M:%S} UTC"
    if failure.run and len(runs) == 1:
        since += f", run {failure.run}"
    texts = [f"{failure.title}.", failure.detail, failure.next_step]
    if len(outlooks) == 1:
        texts.append(failure.outlook)
    return f"{who}, {since}: {' '.join(filter(None, texts))}"


def _file_failures(ledger: Ledger, loaded: Loaded, figures: LedgerFigures) -> dict[str, Failure]:
    """Return the failures of the files that this command cannot load or does not find, by pipeline.

    A failure began when a process first recorded it. An unrecorded failure begins now.
    """
    from sluice.state.ledger.failures import Failure
    from sluice.state.ledger.run_ends import gone_files

    broken = {file.name: file.error for file in loaded.broken}
    names_of_files = {pipeline.name for pipeline in loaded.pipelines} | broken.keys()
    gone = gone_files(ledger.generations.files(), settings().pipelines, names_of_files)
    failures: dict[str, Failure] = {}
    for name, error in {**gone, **broken}.items():
        failure = Failure.of(error, name, kind="file")
        for recorded in figures.failures.get(name, ()):
            if recorded.kind == "file" and recorded.at < failure.at:
                failure = msgspec.structs.replace(failure, at=recorded.at)
        failures[name] = failure
    return failures


def _unseen_files(ledger: Ledger, loaded: Loaded) -> dict[str, str]:
    """Return pipelines' files that were not loaded, and whose folder is not on this host.

    The folder may be on another host, so this is not a failure.
    """
    names = {pipeline.name for pipeline in loaded.pipelines} | {file.name for file in loaded.broken}
    unseen: dict[str, str] = {}
    for name, file in sorted(ledger.generations.files().items()):
        if name not in names and not Path(file).parent.is_dir():
            unseen[name] = file
    return unseen


@dataclass
class Inputs:
    """What the command knows about the topics of pipelines."""

    lags: dict[str, Lag] = field(default_factory=dict)
    """Pipeline → its lag."""
    errors: dict[str, str] = field(default_factory=dict)
    """Pipeline → why its lag is unknown."""
    held: dict[str, datetime] = field(default_factory=dict)
    """Pipeline → the timestamp of the oldest record that a hanging transaction holds back.

    A transaction counts as hanging if this timestamp is old and the transaction is still open after
    `_WATCH_SECONDS`.
    """

    awaited: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Pipeline that has never run → the topics that others must create for it."""

    @classmethod
    def of(
        cls,
        figures: LedgerFigures,
        pipelines: Iterable[Pipeline],
        is_shown: Callable[[str], bool],
    ) -> Self:
        """Read from Kafka what is unread or held back in the topics of the shown pipelines.

        Pipelines that have never run are included.
        """
        from sluice.errors import BrokersUnreachable, SettingsError
        from sluice.kafka.brokers import broker_errors, require_brokers
        from sluice.topology.loading.pipeline_connections import KafkaConnections

        inputs = cls()
        positions: dict[str, Offsets] = {}
        for name in filter(is_shown, figures.positions):
            positions[name] = figures.positions[name]
        for pipeline in pipelines:
            if is_shown(pipeline.name) and pipeline.name not in positions:
                inputs.awaited[pipeline.name] = _awaited_topics(pipeline)
        for name, topics in inputs.awaited.items():
            positions[name] = {topic: {} for topic in topics}
        connections = KafkaConnections(lambda: settings().pipelines)
        clusters: dict[str, dict[str, Offsets]] = {}
        for name, read in positions.items():
            clusters.setdefault(connections.of(name), {})[name] = read
        for connection, of_cluster in clusters.items():
            try:
                kafka = settings().kafka_of(connection)
                require_brokers(kafka, _KAFKA_SECONDS)
                with broker_errors(kafka):
                    inputs._look(kafka, of_cluster)
            except (BrokersUnreachable, SettingsError) as error:
                inputs.errors |= dict.fromkeys(of_cluster, error.detail)
        return inputs

    def failures_of(self, figures: LedgerFigures, pipeline: str) -> list[Failure]:
        """Return what is wrong with a pipeline."""
        from sluice.observe.health import failures_of

        lag, held_since = self.lags.get(pipeline), self.held.get(pipeline)
        return failures_of(figures, pipeline, lag, self.errors.get(pipeline, ""), held_since)

    def not_ready(self, kinds: Mapping[str, set[FailureKind]]) -> dict[str, list[str]]:
        """Return reason → the pipelines that have never run, and cannot run for this reason.

        Pipelines that have failures are left out: `kinds` are the failures of each pipeline.
        """
        from sluice.observe.health import awaited_input

        names_by_reason: dict[str, list[str]] = {}
        for name, topics in sorted(self.awaited.items()):
            lag = self.lags.get(name)
            why = self.errors.get(name, "") if lag is None else awaited_input(lag.missing(topics))
            if why and not kinds.get(name):
                names_by_reason.setdefault(why, []).append(name)
        return names_by_reason

    def _look(self, kafka: Mapping[str, str], positions: Mapping[str, Offsets]) -> None:
        """Read the pipelines' lags behind these positions, and watch open transactions."""
        from sluice.kafka.brokers import silent_admin
        from sluice.kafka.open_transactions import HELD_SECONDS, oldest_held
        from sluice.kafka.unread_records import read_lag

        admin = silent_admin(kafka)
        watched = sorted(set[str]().union(*positions.values()))
        lag_of_all = read_lag(admin, watched, {})
        for name, read in positions.items():
            self.lags[name] = lag_of_all.of_pipeline(read, read)
        if not lag_of_all.held_ends:
            return
        time.sleep(_WATCH_SECONDS)
        lag_of_all = lag_of_all.still_held(read_lag(admin, watched, {}))
        for name, read in positions.items():
            oldest = oldest_held(kafka, lag_of_all.of_pipeline(read, read))
            if oldest is not None:
                age = datetime.now(UTC) - oldest
                if age.total_seconds() > HELD_SECONDS:
                    self.held[name] = oldest


def _awaited_topics(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the topics and patterns that a pipeline reads and does not write itself."""
    from sluice.errors import TopologyError
    from sluice.plan import plan

    try:
        job = plan(pipeline).job
    except TopologyError:
        # `sluice check` and the DAG report that the pipeline is invalid.
        return ()
    return tuple(topic for topic in job.topics_and_patterns if topic not in job.outputs)


def _newest(snapshot: Snapshot | None) -> str:
    if snapshot is None:
        return "none"
    return f"{snapshot.id}, {snapshot.published_at:%Y-%m-%d %H:%M:%S} UTC"
