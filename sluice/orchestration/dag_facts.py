"""The facts from which a pipeline's DAG is made; a separate process imports the file to find them.

This module imports nothing of Airflow, so that the process starts quickly.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, starmap
from pathlib import Path
from typing import Self

import msgspec

from sluice.errors import SettingsError, SluiceError, TopologyError, sentence
from sluice.plan import Job, plan
from sluice.settings import settings
from sluice.topology import Pipeline, drawing
from sluice.topology.loading.pipeline_import import load_file
from sluice.topology.loading.pipeline_libraries import start_installing
from sluice.values.calendar_windows import CalendarWindow
from sluice.values.import_inputs import Inputs, recorded_inputs
from sluice.values.windows import TimeWindow, Window


class AnnouncedStore(msgspec.Struct, frozen=True, kw_only=True):
    """A store whose closed windows are announced to Airflow."""

    store: str
    fixed: Window | None = None
    calendar: CalendarWindow | None = None
    """Either `fixed` or `calendar` is given, and defines the store's windows."""

    @classmethod
    def of(cls, store: str, window: TimeWindow) -> Self:
        if isinstance(window, CalendarWindow):
            return cls(store=store, calendar=window)
        return cls(store=store, fixed=window)

    @property
    def window(self) -> TimeWindow:
        window = self.fixed or self.calendar
        assert window is not None
        return window


class DagFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline's DAG, apart from Airflow's settings."""

    name: str
    file: str | None
    """The path of the pipeline's file."""
    doc: str
    text: str
    """The topology as text."""
    schedule: str | None
    schedule_zone: str
    min_interval_ms: int
    deadline_ms: int | None
    topics: tuple[str, ...]
    outputs: tuple[str, ...]
    """The topics that the pipeline writes."""
    assets: tuple[str, ...]
    """The names of the assets that a run updates."""
    databases: tuple[str, ...]
    """The connections of the databases whose tables the pipeline writes or reads."""
    needs_delta: bool
    announced: tuple[AnnouncedStore, ...] = ()


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a file's pipeline, and what the file has read while it was imported."""

    facts: DagFacts
    inputs: Inputs | None
    """None if the file must be imported again the next time, because one of its inputs is being
    changed."""


def facts_of(pipeline: Pipeline) -> DagFacts:
    """Return the facts of a pipeline. Raises TopologyError if the pipeline cannot be planned."""
    job = plan(pipeline).job
    return DagFacts(
        name=pipeline.name,
        file=None if pipeline.file is None else str(pipeline.file.absolute()),
        doc=pipeline.doc,
        text=drawing.text(pipeline),
        schedule=pipeline.schedule,
        schedule_zone=pipeline.schedule_zone,
        min_interval_ms=pipeline.min_interval_ms,
        deadline_ms=pipeline.deadline_ms,
        topics=tuple(sorted(set(job.topics))),
        outputs=tuple(sorted(set(job.outputs))),
        assets=asset_names(pipeline.name, job),
        databases=tuple(dict.fromkeys((*job.connections, *job.lookup_connections))),
        needs_delta=pipeline.needs_delta,
        announced=tuple(starmap(AnnouncedStore.of, job.pipeline.announced_windows.items())),
    )


def asset_names(pipeline: str, job: Job) -> tuple[str, ...]:
    """Return the assets that a run updates.

    Their names are `PIPELINE.store.NAME`, `PIPELINE.topic.NAME` and `PIPELINE.table.NAME`.
    """
    names = [f"{pipeline}.store.{store}" for store in job.stores]
    names += [f"{pipeline}.topic.{topic}" for topic in dict.fromkeys(job.outputs)]
    sinks = chain.from_iterable(job.written_tables.values())
    tables = [sink.table.name for sink in sinks if sink.table is not None]
    names += [f"{pipeline}.table.{table}" for table in dict.fromkeys(tables)]
    return tuple(name for name in names if name.isascii())  # Airflow accepts only ASCII names


def facts_text(file: Path, seconds: float) -> str:
    """Import a file, and return its `FileFacts` as JSON. Must run in a separate process."""
    # Read the settings before inputs are recorded. Otherwise, the variables of all settings
    # would count as inputs, although few of them affect the facts.
    with suppress(SettingsError):
        settings()
    with recorded_inputs() as record:
        try:
            facts = facts_of(load_file(file, seconds))
        except SluiceError:
            # The import may have failed because libraries are missing. Airflow imports the file
            # again some seconds later, and the libraries may be installed by then.
            start_installing(file)
            raise
        # An error in one pipeline's file must not remove the DAGs of the other pipelines.
        except Exception as error:
            raise TopologyError(
                f"{type(error).__name__}: {sentence(error)}",
                next_step=f"Load the file in Python, which prints the traceback: python {file}.",
            ) from error
    return msgspec.json.encode(FileFacts(facts=facts, inputs=record())).decode()
