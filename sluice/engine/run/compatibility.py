"""Checks that a changed pipeline is compatible with its state, before any records are read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Self

from msgspec.structs import replace

from sluice.errors import EngineError
from sluice.plan import is_of_processor
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, StoreInfo
from sluice.values.phrases import agreeing, counted, joined
from sluice.values.topic_patterns import declared_topics

_MEANING = ("kind", "key", "window_ms", "grace_ms", "value", "made", "group_id", "store_column")
"""The properties of a store that determine the meaning of its state. If one of them changes, the
state cannot be kept."""

IN_ANY_ORDER = ", in any order"
"""The suffix of the definition of a store whose aggregates are combinable."""


class CompatibilityError(EngineError):
    """The pipeline was changed in a way that is incompatible with its state."""

    status = 409
    title = "The pipeline has changed"


def require_compatible(
    before: GenerationInfo | None,
    now: GenerationInfo,
    interrupted: Callable[[], bool],
) -> None:
    """Raise CompatibilityError if state of the generation `before` would get another meaning.

    `interrupted` returns whether the last run was interrupted. Only the pipeline `before` can
    repeat the batch of an interrupted run.
    """
    if before is None:
        return
    changes = incompatible_changes(before, now)
    if not changes:
        return
    name = now.pipeline
    # A part of the planned batch may be written, and only the earlier pipeline computes the same
    # records.
    if interrupted():
        next_step = (
            "The last run was interrupted, and its batch needs the pipeline as it was: undo the "
            f"change, and run the pipeline once: sluice run {name}. Then make the change again. "
            f"Or rebuild all stores: sluice rebuild {name}."
        )
    elif len(changes) == 1 and len(before.workers) != len(now.workers):
        next_step = (
            f"Spread the state over the new number of workers: sluice repartition {name}. "
            "Or undo the change."
        )
    else:
        next_step = (
            "Compute only what has changed from the topics, while readers use the old state: "
            f"sluice rebuild {name} --changed-only. Or rebuild all stores: sluice rebuild {name}. "
            "Or undo the change."
        )
        if renamed := _renamed_store(before, now):
            next_step += (
                " If you have only renamed the store, keep its state: "
                f"sluice rename {name} --store {renamed}."
            )
    removed = removed_stores(before, now)
    if changes == [f"store {store} was removed" for store in removed] and not interrupted():
        raise _stores_removed(name, removed)
    what = f"{name} has changed since its state was computed: {'; '.join(changes)}."
    where = ""
    if before.file and now.file and before.file != now.file:
        where = f" The state was computed by {before.file}, and this run is of {now.file}."
        next_step += " If this file is a copy, give its pipeline another name."
    raise CompatibilityError(
        f"{what}{where} No records were read.",
        next_step=next_step,
    )


def _renamed_store(before: GenerationInfo, now: GenerationInfo) -> str:
    """Return `OLD=NEW` if one store is gone and a similar one is new; otherwise an empty text.

    Whether the stores have the same definition, which contains names, is left to `sluice rename`.
    """
    old, new = before.stores_by_name, now.stores_by_name
    gone, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    if len(gone) != 1 or len(added) != 1:
        return ""
    was, is_now = old[gone[0]], new[added[0]]
    for name in ("kind", "key", "window_ms", "grace_ms", "value"):
        if getattr(was, name) != getattr(is_now, name):
            return ""
    return f"{gone[0]}={added[0]}"


def removed_stores(before: GenerationInfo, now: GenerationInfo) -> list[str]:
    """Return the stores that the pipeline `now` no longer has, sorted."""
    old, new = before.stores_by_name, now.stores_by_name
    lost_by_processors = {*_gained_or_lost_stores(old, new)}
    return sorted(old.keys() - new.keys() - lost_by_processors)


def _stores_removed(pipeline: str, stores: Sequence[str]) -> CompatibilityError:
    """Return the error for a pipeline that lacks stores and has changed in nothing else."""
    names = joined(stores)
    was, their, them = ("was", "Its", "it") if len(stores) == 1 else ("were", "Their", "them")
    noun = agreeing(stores, "store", "stores")
    return CompatibilityError(
        f"{pipeline} has changed since its state was computed: {noun} {names} {was} removed. "
        f"{their} entries are kept, and can be queried. No records were read.",
        next_step=f"Delete the entries for good: sluice rebuild {pipeline} --changed-only. This "
        f"reads no records, and queries then no longer find {them}. Or put {them} back into the "
        "file.",
    )


def incompatible_changes(before: GenerationInfo, now: GenerationInfo) -> list[str]:
    """List the changes that give the state of `before` another meaning for `now`."""
    return [*_changes(before, now)]


@dataclass(frozen=True)
class StoreChanges:
    """The stores and operators whose state a changed pipeline keeps, adds or removes."""

    stores: frozenset[str]
    """The stores that keep their state."""
    operators: Mapping[str, str]
    """The operators that keep their states: earlier name → name now."""
    added: frozenset[str]
    """The new or changed stores and operators, by their current names."""
    removed: frozenset[str]
    """The stores and operators that were removed or changed, by their earlier names."""

    @classmethod
    def between(
        cls,
        before: GenerationInfo,
        now: GenerationInfo,
        processors: Mapping[str, str],
    ) -> Self:
        """Compare a pipeline with the pipeline that computed its state.

        `processors`: store → its processor's name now.

        Raise CompatibilityError if the number of workers or the topics have changed, because that
        affects all stores.
        """
        if changes := [*_changes_of_all(before, now)]:
            next_step = f"Compute all stores from the topics: sluice rebuild {now.pipeline}."
            if len(changes) == 1 and len(before.workers) != len(now.workers):
                next_step = (
                    "Change the stores first, and the workers then: "
                    f"sluice repartition {now.pipeline}."
                )
            raise CompatibilityError(
                f"{now.pipeline} has changed in a way that affects all of its stores: "
                f"{'; '.join(changes)}.",
                next_step=next_step,
            )
        old, new = before.stores_by_name, now.stores_by_name
        # A processor fills all of its stores. So if one of its stores has changed, all of them are
        # recomputed.
        recomputed: set[str] = set()
        for name in processors.keys() & old.keys():
            if _store_change(old[name], new[name]):
                recomputed.add(processors[name])
        operators: dict[str, str] = {}
        for name_before, name in _same_operators(before, now):
            if name not in recomputed:
                operators[name_before] = name
        ordered = before.operators.keys() | now.operators.keys()
        stores: set[str] = set()
        for name in old.keys() & new.keys():
            # An operator's store has the operator's name, and keeps its rows only if the operator
            # keeps its states.
            keeps_states = name not in ordered or operators.get(name) == name
            if keeps_states and _is_same_store(old[name], new[name]):
                stores.add(name)
        return cls(
            frozenset(stores),
            operators,
            frozenset({*_steps(now)} - stores - {*operators.values()}),
            frozenset({*_steps(before)} - stores - operators.keys()),
        )


def _is_same_store(old: StoreInfo, new: StoreInfo) -> bool:
    """Return whether two stores have the same meaning.

    Group and column may differ, because rows are copied to the new group.
    """
    old_elsewhere = replace(old, group_id=0, store_column=0)
    new_elsewhere = replace(new, group_id=0, store_column=0)
    return not _store_change(old_elsewhere, new_elsewhere)


def stores_to_come(ledger: Ledger, before: GenerationInfo, now: GenerationInfo) -> frozenset[str]:
    """Return the added stores and steps if a later generation is computing them now.

    A run can leave these stores and steps out until the later generation is current. If the
    pipeline has changed in other ways, too, leaving them out is not enough, and the result is
    empty.
    """
    if [*_changes_of_all(before, now)]:
        return frozenset()
    changes = StoreChanges.between(before, now, {})
    if changes.removed:
        return frozenset()
    for info in ledger.generations.all(now.pipeline):
        if info.generation > before.generation and changes.added <= {*_steps(info)}:
            return changes.added
    return frozenset()


def number_of(definition: str) -> int:
    """Return the number of the operator with this definition."""
    return int(definition.split(" ")[1])


def changed_functions(before: GenerationInfo | None, now: GenerationInfo) -> list[str]:
    """Return the functions whose code has changed since the state was computed.

    The state stays valid. Only the author knows whether the new code gives other results. If so,
    the author can rebuild the state.
    """
    if before is None:
        return []
    changed: list[str] = []
    for name, code in now.functions.items():
        if before.functions.get(name, code) != code:
            changed.append(name)
    return sorted(changed)


def is_compatible(before: GenerationInfo, now: GenerationInfo) -> bool:
    """Return whether the pipeline `now` can continue with the state of `before`."""
    return not incompatible_changes(before, now)


def computes_same_state(before: GenerationInfo, now: GenerationInfo) -> bool:
    """Return whether both generations compute the same state from the same records."""
    return is_compatible(before, now) and not changed_functions(before, now)


def changed_functions_warning(pipeline: str, functions: list[str]) -> str:
    """Return the warning that the code of functions has changed."""
    return (
        f"The code of {', '.join(functions)} has changed. The state computed by the old code is "
        f"kept; to rebuild it with the new code: sluice rebuild {pipeline}."
    )


def _changes(before: GenerationInfo, now: GenerationInfo) -> Iterator[str]:
    yield from _changes_of_all(before, now)
    old, new = before.stores_by_name, now.stores_by_name
    for name in sorted((old.keys() | new.keys()).difference(_gained_or_lost_stores(old, new))):
        if name not in new:
            yield f"store {name} was removed"
        elif name not in old:
            yield f"store {name} is new and would lack earlier records"
        elif changed := _store_change(old[name], new[name]):
            yield f"store {name}: {changed}"
    for name in sorted(before.operators.keys() | now.operators.keys()):
        if name not in {*old, *new} and before.operators.get(name) != now.operators.get(name):
            was = before.operators.get(name, "nothing")
            is_now = now.operators.get(name, "nothing")
            yield f"step {name} has changed or moved: {_difference(was, is_now)}"


def _changes_of_all(before: GenerationInfo, now: GenerationInfo) -> Iterator[str]:
    """Yield the changes that concern all stores."""
    if len(before.workers) != len(now.workers):
        yield f"{counted(len(before.workers), 'worker')} became {len(now.workers)}"
    # The topics that a pattern matches are not compared, because each run may find new topics.
    topics_before, topics_now = {*declared_topics(before.topics)}, {*declared_topics(now.topics)}
    if gone := sorted(topics_before - topics_now):
        yield f"no longer reads {', '.join(gone)}"
    if added := sorted(topics_now - topics_before):
        yield f"now also reads {', '.join(added)}"


def _same_operators(before: GenerationInfo, now: GenerationInfo) -> Iterator[tuple[str, str]]:
    """Yield the names, before and now, of the operators with the same definition.

    Generated names may have changed.
    """
    named: dict[str, list[str]] = defaultdict(list)
    for name, definition in sorted(before.operators.items(), key=lambda each: number_of(each[1])):
        named[_without_number(definition)].append(name)
    stores = {store.name for store in (*before.stores, *now.stores)}
    for name, definition in sorted(now.operators.items(), key=lambda each: number_of(each[1])):
        same = named[_without_number(definition)]
        if name in same:
            same.remove(name)
            yield name, name
            continue
        # The author names stores, so only a step without a store can have another name than before.
        if name in stores:
            continue
        for name_before in same:
            if name_before not in stores:
                same.remove(name_before)
                yield name_before, name
                break


def _steps(info: GenerationInfo) -> Iterator[str]:
    """Yield the stores and operators that are steps of the pipeline.

    The stores of processors are not steps.
    """
    for store in info.stores:
        if not is_of_processor(store.group_id):
            yield store.name
    yield from info.operators


def stores_of_processors(
    before: GenerationInfo,
    now: GenerationInfo,
) -> tuple[list[str], list[str]]:
    """List the stores that processors have gained and lost. The gained stores start empty."""
    old, new = before.stores_by_name, now.stores_by_name
    changed = {*_gained_or_lost_stores(old, new)}
    return sorted(changed - old.keys()), sorted(changed - new.keys())


def _without_number(definition: str) -> str:
    return definition.partition(" > ")[2]


def _gained_or_lost_stores(
    old: Mapping[str, StoreInfo],
    new: Mapping[str, StoreInfo],
) -> Iterator[str]:
    """Yield the stores that a processor has gained or lost.

    Such a change is compatible, because a new store starts empty.
    """
    for stores, others in ((old, new), (new, old)):
        for name, store in stores.items():
            if name not in others and is_of_processor(store.group_id):
                yield name


def _store_change(old: StoreInfo, new: StoreInfo) -> str:
    if new.keeps_headers and not old.keeps_headers:
        return "it did not keep the headers of records, and now keeps them"
    if old.keeps_headers and not new.keeps_headers:
        return "it kept the headers of records, and now keeps none"
    for name in _MEANING:
        was, is_now = getattr(old, name), getattr(new, name)
        # Definitions are long, so the message has only the first step that differs.
        if was != is_now and name == "made":
            return f"its definition changed: {_difference(was, is_now)}"
        if was != is_now:
            return f"{_NAMES.get(name, name)} {was!r} became {is_now!r}"
    return ""


def _difference(was: str, is_now: str) -> str:
    """Describe the first step that differs, or say that the order of records has changed."""
    if was.endswith(IN_ANY_ORDER) and not is_now.endswith(IN_ANY_ORDER):
        return "it took records in any order, and now takes them in order"
    if is_now.endswith(IN_ANY_ORDER) and not was.endswith(IN_ANY_ORDER):
        return "it took records in order, and now takes them in any order"
    for old, new in zip_longest(was.split(" > "), is_now.split(" > "), fillvalue="nothing"):
        if old != new:
            return f"{old!r} became {new!r}"
    raise AssertionError("the two definitions differ")


_NAMES = {
    "group_id": "its group",
    "store_column": "its column in the group",
    "value": "the type of its values",
}
