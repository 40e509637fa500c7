"""Compares a pipeline with its published topology within a second, without Spark."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from msgspec.structs import replace

from sluice.engine.batch.storage import Storage
from sluice.engine.run.arrow_query import ArrowQuery
from sluice.engine.run.compatibility import CompatibilityError, require_compatible
from sluice.engine.run.published_changes import PipelineChange, Weight, published_changes
from sluice.engine.run.registration import KnownTypes, generation_info
from sluice.plan import Job
from sluice.plan.arrow_support import NeedsSparkError
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo

_UNKNOWN = "(types that only Spark knows)"


@dataclass(frozen=True)
class _NoTypes:
    """Stands in for the types of a job if only Spark can find them."""

    stores: defaultdict[str, str] = field(default_factory=lambda: defaultdict(lambda: _UNKNOWN))
    inputs: defaultdict[int, str] = field(default_factory=lambda: defaultdict(lambda: _UNKNOWN))


@dataclass(frozen=True)
class Comparison:
    """A pipeline, compared with its newest snapshot."""

    snapshot: str
    """The newest snapshot; empty if the pipeline has published none."""
    changes: tuple[PipelineChange, ...] = ()
    next_step: str = ""
    """What to do if runs stop because of a change."""
    unknown: str = ""
    """Why types were not compared; empty if they were compared."""

    @property
    def weight(self) -> Weight:
        """The weight of the most serious change."""
        return max((change.weight for change in self.changes), default=Weight.NOTE)


def compare(job: Job, settings: Settings, ledger: Ledger) -> Comparison:
    """Compare a job with the topology with which its newest snapshot was computed."""
    name = job.pipeline.name
    storage = Storage.of(job, ledger.generations.current_number(name) or 1, settings)
    newest, before = ledger.snapshots.newest(storage.ref), ledger.generations.get(storage.ref)
    if newest is None or before is None:
        return Comparison("")
    now, unknown = description_now(job, settings, before)
    next_step = ""
    try:
        require_compatible(before, now, lambda: ledger.plans.unpublished(storage.ref) is not None)
    except CompatibilityError as error:
        next_step = error.next_step
    return Comparison(newest.id, tuple(published_changes(before, now)), next_step, unknown)


def description_now(
    job: Job, settings: Settings, before: GenerationInfo
) -> tuple[GenerationInfo, str]:
    """Return a job's description, to be compared with an earlier one of the pipeline.

    The second value is the reason why types are unknown; empty if they are known. Unknown types are
    taken from `before`, as far as both descriptions agree.
    """
    storage = Storage.of(job, before.generation, settings)
    try:
        partitions = dict.fromkeys(job.topics, 1)
        types: KnownTypes = ArrowQuery.of(job, storage, partitions, 0, interleaved=False).types
    except NeedsSparkError as part:
        return _with_types_of(before, generation_info(storage, _NoTypes())), str(part)
    return generation_info(storage, types), ""


def _with_types_of(before: GenerationInfo, now: GenerationInfo) -> GenerationInfo:
    """Fill in unknown types from an earlier description, as far as the two agree otherwise."""
    earlier = before.stores_by_name
    stores = []
    for store in now.stores:
        old = earlier.get(store.name)
        if old is not None:
            value = old.value if store.value == _UNKNOWN else store.value
            store = replace(store, value=value, made=_with_types(old.made, store.made))
        stores.append(store)
    operators: dict[str, str] = {}
    for name, definition in now.operators.items():
        operators[name] = _with_types(before.operators.get(name, ""), definition)
    return replace(now, stores=tuple(stores), operators=operators)


def _with_types(old: str, new: str) -> str:
    """Return the old definition if the new one differs only in unknown types, else the new one."""
    begin, unknown, end = new.partition(_UNKNOWN)
    types = old.removeprefix(begin).removesuffix(end)
    # Types never contain `>` between spaces, which separates two steps.
    is_same = unknown and f"{begin}{types}{end}" == old and " > " not in types
    if is_same:
        return old
    return new
