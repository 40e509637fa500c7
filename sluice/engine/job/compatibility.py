"""Checks that a changed pipeline is compatible with its state, before any records are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest

from sluice.errors import EngineError
from sluice.plan import is_of_processor
from sluice.state.model import JobInfo, StoreInfo

_MEANING = ("kind", "key", "window_ms", "grace_ms", "value", "made", "group_id", "store_column")
"""The properties of a store that define the meaning of its state and therefore may not change."""


class CompatibilityError(EngineError):
    """The pipeline was changed in a way that is incompatible with its state."""

    status = 409
    title = "The pipeline has changed"


def require_compatible(before: JobInfo | None, now: JobInfo) -> None:
    """Raise CompatibilityError if the state of the job `before` has another meaning for the job `now`."""
    if before is None:
        return
    changes = [*_changes(before, now)]
    if len(changes) == 1 and len(before.workers) != len(now.workers):
        raise CompatibilityError(
            f"{now.pipeline} has changed since its state was computed: {changes[0]}. No records were read.",
            next_step=f"Spread the state over the new number of workers: sluice repartition {now.pipeline}. "
            "Or undo the change.",
        )
    _refuse(now.pipeline, changes)


def changed_functions(before: JobInfo | None, now: JobInfo) -> list[str]:
    """The functions whose code has changed since the state was computed.

    The state stays valid. Only the author knows whether the new code gives other results, and can rebuild the state.
    """
    codes = {} if before is None else before.functions
    return sorted(name for name, code in now.functions.items() if codes.get(name, code) != code)


def means_the_same(before: JobInfo, now: JobInfo) -> bool:
    """Whether both jobs compute the same state from the same records."""
    return not [*_changes(before, now)] and not changed_functions(before, now)


def functions_changed(pipeline: str, functions: list[str]) -> str:
    """The warning that the code of functions has changed."""
    return (
        f"The code of {', '.join(functions)} has changed. The state computed by the old code is kept; to rebuild it "
        f"with the new code: sluice rebuild {pipeline}."
    )


def _refuse(pipeline: str, changes: list[str]) -> None:
    if changes:
        raise CompatibilityError(
            f"{pipeline} has changed since its state was computed: {'; '.join(changes)}. No records were read.",
            next_step="Rebuild the state from the topics, while readers use the old state: "
            f"sluice rebuild {pipeline}. Or undo the change, or give the pipeline another name.",
        )


def _changes(before: JobInfo, now: JobInfo) -> Iterator[str]:
    if len(before.workers) != len(now.workers):
        yield f"{len(before.workers)} workers became {len(now.workers)}"
    old, new = ({store.name: store for store in info.stores} for info in (before, now))
    for name in sorted((old.keys() | new.keys()).difference(_coming_and_going(old, new))):
        if name not in new:
            yield f"store {name} was removed"
        elif name not in old:
            yield f"store {name} is new and would lack earlier records"
        elif changed := _changed(old[name], new[name]):
            yield f"store {name}: {changed}"
    for name in sorted(before.operators.keys() | now.operators.keys()):
        if name not in {*old, *new} and before.operators.get(name) != now.operators.get(name):
            was, is_now = (info.operators.get(name, "nothing") for info in (before, now))
            yield f"step {name} has changed or moved: {_difference(was, is_now)}"
    if gone := sorted({*before.topics} - {*now.topics}):
        yield f"no longer reads {', '.join(gone)}"
    if added := sorted({*now.topics} - {*before.topics}):
        yield f"now also reads {', '.join(added)}"


def _coming_and_going(old: Mapping[str, StoreInfo], new: Mapping[str, StoreInfo]) -> Iterator[str]:
    """The stores that a processor has gained or lost. This is compatible, because a new store starts empty."""
    for stores, others in ((old, new), (new, old)):
        yield from (name for name, store in stores.items() if name not in others and is_of_processor(store.group_id))


def _changed(old: StoreInfo, new: StoreInfo) -> str:
    for name in _MEANING:
        was, is_now = getattr(old, name), getattr(new, name)
        if was != is_now and name == "made":
            return f"its definition changed: {_difference(was, is_now)}"
        if was != is_now:
            return f"{_NAMES.get(name, name)} {was!r} became {is_now!r}"
    return ""


def _difference(was: str, is_now: str) -> str:
    """Describe the first step that differs."""
    steps = zip_longest(was.split(" > "), is_now.split(" > "), fillvalue="nothing")
    old, new = next((old, new) for old, new in steps if old != new)
    return f"{old!r} became {new!r}"


_NAMES = {"group_id": "its group", "store_column": "its column in the group", "value": "the type of its values"}
