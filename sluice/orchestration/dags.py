"""A DAG for each pipeline, which starts when there are unread records or when triggered by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn

import structlog
from airflow.configuration import conf
from airflow.sdk import DAG, Asset, AssetWatcher, Param, get_parsing_context

from sluice.airflow_connections import KAFKA
from sluice.airflow_releases import NO_BACKFILLS, AirflowFailException, cron_timetable
from sluice.errors import SettingsError, SluiceError
from sluice.orchestration.alerts import deadline_alert
from sluice.orchestration.cached_facts import cached_facts_of, facts_of_folder
from sluice.orchestration.dag_facts import DagFacts, facts_of
from sluice.orchestration.deadlines import NAME, OverdueTrigger, deadlines_dag
from sluice.orchestration.operator import ACTIONS, LIMITS, SluiceOperator
from sluice.orchestration.retries import pipeline_task_defaults
from sluice.orchestration.trigger import KafkaEndOffsetTrigger
from sluice.orchestration.window_events import assets_of, mark_of
from sluice.settings import settings
from sluice.state.ledger.run_ends import note_files
from sluice.topology import Broken, Pipeline, load_pipeline
from sluice.topology.loading.pipeline_connections import libraries_of_name
from sluice.topology.loading.pipeline_libraries import install_within
from sluice.topology.loading.run_options import (
    DEFAULTS,
    FILE,
    OWNER,
    RunOptions,
    run_options,
    unlimited_options,
)
from sluice.topology.pipeline import CONTINUOUS, ON_RECORDS, RESERVED
from sluice.values.pipeline_modules import libraries_forgotten
from sluice.values.replay_span import LONGEST_POINT, POINT_PATTERN
from sluice.values.shared_topics import shared_topics

log = structlog.get_logger()

_NOTE_SECONDS = 3.0
_INSTALLING_SECONDS = 15.0
"""How long a task's process waits for a pipeline's libraries. Airflow ends imports after 30 s. If
the libraries are not installed by then, a later attempt of the task finds them."""
_ACTION = (
    "run: read all unread records. replay: build the state again, in a generation beside the "
    "current one. promote: make this generation the current one. drop: remove this generation. "
    "roll_back: make the generation before the current one current again. change: compute only "
    "new and changed stores, delete removed ones, and then run."
)
_NUMBERS = {
    "max_records": "Maximum number of records in a batch. Empty: SLUICE_MAX_RECORDS.",
    "linger_seconds": "How long the run waits for new records after it has read all. "
    "Empty: the pipeline's linger.",
}
_POINTS = {
    "from": "Where a replay begins: beginning, a time such as 2026-11-21T08:00:00 (UTC), "
    "or TOPIC/PARTITION/OFFSET, several with commas between them. "
    "Empty: where the current generation began.",
    "until": "Where a replay ends: a time or TOPIC/PARTITION/OFFSET. Empty: the newest snapshot.",
}
_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"
"""The environment variable that Airflow sets to `client` in the DAG processor. Broken files are
reported as import errors only in the DAG processor, because an import error ends other programs,
such as `airflow dags reserialize`."""
_ID = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,199}")


@dataclass(frozen=True)
class Alerts:
    """The functions to call when a task has failed or a pipeline's data are too old."""

    on_failure: Callable[[Any], object] | None = None
    """Airflow's `on_failure_callback`, for example a notifier: called when a task has failed and is
    not retried."""
    on_overdue: str = ""
    """The import path of `async def notify(pipeline, detail, context)`: called when a pipeline's
    data are too old."""


NO_ALERTS = Alerts()


def pipeline_dags(folder: Path, alerts: Alerts = NO_ALERTS) -> dict[str, DAG]:
    """Return the DAGs of all pipelines in `folder`, by id.

    If `folder` is a team's folder in SLUICE_PIPELINES, only the DAGs of the team's pipelines are
    returned. The platform's options and limits apply to them, too.

    `sluice_deadlines` is among the DAGs if a pipeline has a deadline; in a team's folder, the name
    of the folder is added to the id. A file that cannot be used gets a
    DAG that shows the error, an entry in the ledger and, in the DAG processor, an import error. In
    a task's process, only the DAG of the task's pipeline is created.
    """
    folder = _team_folder(folder)
    is_of_team = folder.parent == settings().pipelines
    root = folder.parent if is_of_team else folder
    dag_of_task = _dag_of_task(root, alerts)
    if dag_of_task is not None:
        return {dag_of_task.dag_id: dag_of_task}
    # The files of all teams are looked at even if only one team's DAGs are wanted, because two
    # teams may use the same name, and the ledger gets the broken files of all teams.
    all_facts, broken = facts_of_folder(root, settings().home)
    dags: dict[str, DAG] = {}
    usable: set[str] = set()
    watched: dict[str, OverdueTrigger] = {}
    shared = shared_topics({facts.name: facts.outputs for facts in all_facts})
    for facts in all_facts:
        try:
            options = _options(facts, root)
        except SluiceError as error:
            broken.append(Broken(Path(facts.file or facts.name), facts.name, error))
            continue
        usable.add(facts.name)
        if not _is_in(folder, Path(facts.file or "")):
            continue
        warnings = [str(topic) for topic in shared if facts.name in (*topic.pipelines, topic.owner)]
        dags[facts.name] = _dag(facts, options, alerts, warnings)
        if facts.deadline_ms is not None:
            watched[facts.name] = OverdueTrigger(
                facts.name,
                [*facts.topics],
                facts.deadline_ms,
                kafka_config_id=options.kafka_connection or KAFKA,
            )
    if watched:
        task_defaults = pipeline_task_defaults() | {"on_failure_callback": alerts.on_failure}
        name = f"{NAME}_{folder.name}" if is_of_team else NAME
        dags[name] = deadlines_dag(watched, alerts.on_overdue, task_defaults, name)
    broken_files = _files_by_dag_id(broken, {*usable, *RESERVED})
    for name, file in broken_files.items():
        if not _is_in(folder, file.file):
            continue
        dags[name] = _broken_dag(name, file, _unlimited_options(file, root))
        if os.environ.get(_CONTEXT) == "client":
            dags[f"{name}.import_error"] = ImportErrorDag(name, file)
    loaded = {facts.name for facts in all_facts}
    _note({name: file.error for name, file in broken_files.items()}, loaded)
    return dags


def _team_folder(folder: Path) -> Path:
    """Return the path of a team's folder as it is in SLUICE_PIPELINES, which may be a link.

    Return any other folder as it is. Raise SettingsError if a subfolder of SLUICE_PIPELINES is not
    a team's folder.
    """
    pipelines = settings().pipelines
    if folder.absolute().parent.resolve() != pipelines.resolve():
        return folder
    if not (folder / FILE).is_file():
        raise SettingsError(
            f"{folder} is not a team's folder: it has no {FILE}.",
            next_step=f"Create {folder / FILE}, which may be empty.",
        )
    return pipelines / folder.name


def _is_in(folder: Path, file: Path) -> bool:
    return file.absolute().is_relative_to(folder.absolute())


def _note(broken: dict[str, SluiceError], loaded: set[str]) -> None:
    """Record in the ledger which pipelines' files are broken or gone.

    Wait only a short time, so that an unreachable ledger does not delay DAGs.
    """
    noting = Thread(target=note_files, args=(settings(), broken, loaded), daemon=True)
    noting.start()
    noting.join(_NOTE_SECONDS)


def _dag_of_task(folder: Path, alerts: Alerts) -> DAG | None:
    """Return the DAG of this process's task.

    Return None if the process runs no task, or if the pipeline cannot be loaded.
    """
    wanted = get_parsing_context().dag_id
    if not wanted:
        return None
    try:
        facts = cached_facts_of(folder, settings().home, wanted)
        if facts is None:
            libraries = libraries_of_name(folder, wanted, settings().home)
            if libraries is not None and not libraries.is_built:
                install_within(libraries, _INSTALLING_SECONDS)
            with libraries_forgotten():
                facts = facts_of(load_pipeline(folder, wanted))
        return _dag(facts, _options(facts, folder), alerts)
    except SluiceError:
        return None


def _files_by_dag_id(broken: list[Broken], taken: set[str]) -> dict[str, Broken]:
    """Return DAG id → broken file.

    The id is the pipeline's name if the file's text contains it, otherwise the file's name.
    """
    files: dict[str, Broken] = {}
    for file in broken:
        name = file.name if _ID.fullmatch(file.name) and file.name not in taken else ""
        if name in files and str(files[name].error) == str(file.error):
            # Two files with pipelines of the same name have the same error, so one DAG shows it.
            continue
        if not name or name in files:
            name = re.sub(r"[^A-Za-z0-9_-]", "_", file.file.stem)[:200]
        while name in files or name in taken:
            name += "_broken"
        files[name] = file
    return files


def pipeline_dag(pipeline: Pipeline, alerts: Alerts = NO_ALERTS) -> DAG:
    """Return the DAG of a pipeline, with the pipeline's name and a task that runs the pipeline.

    At most one run of the DAG is active at a time.
    """
    facts = facts_of(pipeline)
    return _dag(facts, _options(facts, settings().pipelines), alerts)


def _options(facts: DagFacts, folder: Path) -> RunOptions:
    """Return the options of a pipeline, whose file may also be outside of `folder`."""
    if facts.file is None:
        return run_options(folder, None, facts.name)
    file = Path(facts.file)
    root = folder.absolute()
    return run_options(root if file.is_relative_to(root) else file.parent, file, facts.name)


def _dag(facts: DagFacts, options: RunOptions, alerts: Alerts, warnings: Sequence[str] = ()) -> DAG:
    """Make a DAG. Warnings are in the DAG processor's log and the DAG's documentation."""
    deadline = facts.deadline_ms
    for warning in warnings:
        log.warning("output shared", pipeline=facts.name, warning=warning)
    given = "" if options == DEFAULTS else f"\n{options.as_text()}\n"
    on_failure = alerts.on_failure
    if options.on_failure is not None:
        on_failure = CalledByPath(options.on_failure)
    documented = "".join(f"**Warning:** {warning}\n\n" for warning in warnings)
    dag = DAG(
        facts.name,
        schedule=_schedule(facts, options),
        # A run reads all unread records, whatever the run's date. So runs for past dates would read
        # nothing.
        catchup=False,
        **NO_BACKFILLS,
        max_active_runs=1,
        description=facts.doc.partition("\n")[0],
        doc_md=f"{documented}{facts.doc}\n\n```text\n{facts.text}\n{given}```\n",
        tags={"sluice", "pipeline", *options.tags},
        params=_parameters(),
        default_args=pipeline_task_defaults(options) | {"on_failure_callback": on_failure},
        owner_links=_owner_links(options.owner or OWNER),
        deadline=None
        if deadline is None
        else deadline_alert(facts.name, deadline, alerts.on_overdue),
    )
    of_windows = assets_of(facts.name, facts.announced)
    marks = [mark_of(facts.name, announced.store) for announced in facts.announced]
    SluiceOperator(
        dag=dag, task_id="main", pipeline=facts.name, pool=options.pool or settings().pool,
        options=options, outlets=[*[Asset(name) for name in facts.assets], *of_windows],
        databases=[*facts.databases], delta=facts.needs_delta,
        continuous=facts.schedule == CONTINUOUS, executor_config=options.executor_config or None,
        # The mark assets are inlets, because their events tell a run which windows earlier runs
        # have announced.
        announced=facts.announced, inlets=marks,
    )  # fmt: skip
    return dag


@dataclass(frozen=True)
class CalledByPath:
    """A function that is imported when called, so that a wrong path does not break the DAG."""

    path: str

    def __call__(self, context: Any) -> None:
        """Call the function with Airflow's context."""
        module, _, name = self.path.rpartition(".")
        getattr(import_module(module), name)(context)


def _parameters() -> dict[str, Param]:
    """Return the parameters of a run, all of which have a default."""
    parameters = {"action": Param("run", enum=list(ACTIONS), description=_ACTION)}
    for name, text in _NUMBERS.items():
        least, most = LIMITS[name]
        parameters[name] = Param(
            None, type=["null", "integer"], minimum=least, maximum=most, description=text
        )
    for name, text in _POINTS.items():
        parameters[name] = Param(
            None,
            type=["null", "string"],
            maxLength=LONGEST_POINT,
            pattern=POINT_PATTERN,
            description=text,
        )
    return parameters


def _schedule(facts: DagFacts, options: RunOptions) -> Any:
    if facts.schedule == ON_RECORDS:
        seconds = facts.min_interval_ms / 1_000
        trigger = KafkaEndOffsetTrigger(
            facts.name,
            [*facts.topics],
            kafka_config_id=options.kafka_connection or KAFKA,
            min_interval_seconds=seconds,
        )
        name = f"{facts.name}.records"
        return [Asset(name, watchers=[AssetWatcher(name, trigger)])]
    if facts.schedule == CONTINUOUS:
        return f"@{CONTINUOUS}"
    if facts.schedule is not None and facts.schedule_zone != "UTC":
        return cron_timetable(facts.schedule, facts.schedule_zone)
    return facts.schedule


def _unlimited_options(broken: Broken, root: Path) -> RunOptions:
    """Return the options of a broken file; Sluice's defaults if a `sluice.toml` is invalid."""
    try:
        return unlimited_options(root, broken.file, broken.name)
    except SluiceError:
        return DEFAULTS


def _broken_dag(name: str, broken: Broken, options: RunOptions) -> DAG:
    """Return the DAG of a pipeline that cannot be loaded.

    It keeps the history of runs visible, and has no schedule. It has the pipeline's owner and tags,
    so that a team finds it among the team's DAGs.
    """
    from airflow.providers.standard.operators.python import PythonOperator

    message = "\n".join(f"    {line}" for line in str(broken.error).splitlines())
    dag = DAG(
        name,
        schedule=None,
        description=f"{broken.file.name} cannot be loaded: {broken.error.detail}",
        doc_md=f"**{broken.file.name} cannot be loaded.**\n\n{message}\n",
        tags={"sluice", "broken", *options.tags},
        default_args={"owner": options.owner or OWNER},
        owner_links=_owner_links(options.owner or OWNER),
    )
    PythonOperator(
        dag=dag, task_id="cannot_be_loaded", python_callable=_fail, op_args=[str(broken.error)]
    )
    return dag


class ImportErrorDag(DAG):
    """A DAG that never becomes visible, and that Airflow reports as a pipeline file's import error.

    Airflow records import errors per DAG file, and removes all DAGs of a file with an error. The
    only exception is a DAG that cannot be serialized: Airflow records its error for the DAG's
    `relative_fileloc` and keeps the other DAGs.
    """

    def __init__(self, name: str, broken: Broken) -> None:
        super().__init__(f"{name}.import_error", schedule=None)
        self.broken = broken

    @property
    def relative_fileloc(self) -> str:
        """The pipeline's file, not the DAG file."""
        return self.broken.file.name

    @relative_fileloc.setter
    def relative_fileloc(self, _: str | None) -> None:
        pass

    def get_serialized_fields(self) -> NoReturn:  # type: ignore[override]
        raise self.broken.error


def _fail(why: str) -> None:
    raise AirflowFailException(why)


def _owner_links(owner: str) -> dict[str, str]:
    """Return a link from a DAG's owner to Sluice's page, if Airflow's own address is configured."""
    base = conf.get("api", "base_url", fallback="") or ""
    return {owner: f"{base.rstrip('/')}/plugin/sluice"} if base.startswith("http") else {}
