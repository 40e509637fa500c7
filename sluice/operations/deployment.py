"""Compares the current generation with the one that a replay has built, store by store.

`sluice deploy` builds a changed pipeline's state in a new generation, which queries do not read.
Then it reports how this generation's answers differ from the current generation's after the same
records.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from sluice.errors import NotFound
from sluice.operations.rebuild import replayed_generation
from sluice.query.differences import Differences, Kind, entries_of, pairs
from sluice.query.reader import Reader
from sluice.query.results import Pin
from sluice.state.ledger.generations import unknown_pipeline
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import NO_WINDOW, GenerationInfo, GenerationRef, Snapshot, StoreInfo
from sluice.state.queries.entries import Entry

_EXAMPLES = 5
_MOST_TEXT = 200
_DECODER = msgspec.json.Decoder(float_hook=Decimal)
_DIFFERENT: Mapping[Kind, str] = {
    "changed": "has another answer",
    "missing": "is gone",
    "added": "is new",
}

Number = int | Decimal


@dataclass
class StoreComparison:
    """A store in both generations, or in one of them."""

    name: str
    state: str
    """`same`, `differs`, `new` or `removed`."""
    entries: tuple[int, int] = (0, 0)
    """The number of entries in the current and in the new generation."""
    totals: Mapping[str, tuple[Number, Number]] = field(default_factory=dict)
    """Field with numbers → its sum over all entries, in both generations."""
    differences: Differences = field(default_factory=Differences)

    def lines(self) -> Iterator[str]:
        """Describe the store, one sentence a line."""
        if self.state == "removed":
            yield f"{self.name}: is no longer in the pipeline. Queries would no longer find it."
            return
        if self.state == "new":
            yield f"{self.name}: is new, with {self.entries[1]:,} entries."
            return
        before, after = self.entries
        found = self.differences
        if self.state == "same":
            yield f"{self.name}: all {before:,} entries have the same answer."
            return
        yield (
            f"{self.name}: of {before:,} entries, {found.same:,} have the same answer, "
            f"{found.changed:,} have another answer, and {found.missing:,} are gone; "
            f"{found.added:,} are new. There are now {after:,} entries."
        )
        for name, (old, new) in self.totals.items():
            if old != new:
                yield f"  total of {name}: {old:,} became {new:,}"
        for example in found.examples:
            key = example.key
            if example.window_start != NO_WINDOW:
                start = datetime.fromtimestamp(example.window_start / 1_000, UTC)
                key += f" at {start:%Y-%m-%dT%H:%M:%SZ}"
            answers = f"{_text(example.before)} became {_text(example.after)}"
            yield f"  {key} {_DIFFERENT[example.kind]}: {answers}"


@dataclass(frozen=True)
class Deployment:
    """The current generation and the new one beside it, compared."""

    pipeline: str
    current: Snapshot
    """The snapshot of the current generation that was compared."""
    new: Snapshot
    is_at_same_records: bool
    """Whether both snapshots contain the same records. If not, retention has removed the current
    generation's snapshot with the records of the new generation."""
    stores: tuple[StoreComparison, ...]

    @property
    def differs(self) -> bool:
        """Return whether the new generation would answer a query differently."""
        return any(store.state != "same" for store in self.stores)

    def lines(self) -> Iterator[str]:
        """Describe the differences, one sentence a line."""
        yield (
            f"Generation {self.new.generation} was built beside generation "
            f"{self.current.generation} of {self.pipeline}. Compared: {self.current.id} and "
            f"{self.new.id}."
        )
        if not self.is_at_same_records:
            yield (
                "The two generations have not read the same records, so some differences come from "
                "records that only one of them has read. To compare the same records, deploy again."
            )
        for store in self.stores:
            yield from store.lines()
        yield (
            "Outputs: the new generation has written nothing, and a promotion writes nothing. The "
            "next run writes the results of the records that no run has read yet, once."
        )


def compare_generations(ledger: Ledger, pipeline: str) -> Deployment:
    """Compare the generation that a replay has built with the current one.

    Raise EngineError if there is no such generation. Raise NotFound if the pipeline is not in the
    ledger, or if one of the generations has no snapshot yet.
    """
    number = ledger.generations.current_number(pipeline)
    if number is None:
        raise unknown_pipeline(pipeline)
    current = GenerationRef(pipeline, number)
    new = replayed_generation(ledger, current)
    before, after = ledger.generations.get(current), ledger.generations.get(new)
    built = ledger.snapshots.newest(new)
    newest = ledger.snapshots.newest(current)
    if before is None or after is None or built is None or newest is None:
        raise NotFound(
            f"Generation {new.generation} of {pipeline} has no snapshot, because it has not been "
            "built completely.",
            next_step=f"Build it again: sluice deploy {pipeline}.",
        )
    same = _at_same_records(ledger, pipeline, built)
    stores = asyncio.run(_compare(ledger, before, after, same or newest, built))
    return Deployment(pipeline, same or newest, built, same is not None, tuple(stores))


def _at_same_records(ledger: Ledger, pipeline: str, built: Snapshot) -> Snapshot | None:
    """Return the current generation's snapshot that has the same records as the new generation."""
    for snapshot in ledger.snapshots.recent(pipeline, limit=1_000):
        # Each of the generations may read topics that the other one does not read.
        common = snapshot.positions.keys() & built.positions.keys()
        if common and all(snapshot.positions[name] == built.positions[name] for name in common):
            return snapshot
    return None


async def _compare(
    ledger: Ledger,
    before: GenerationInfo,
    after: GenerationInfo,
    current: Snapshot,
    built: Snapshot,
) -> list[StoreComparison]:
    reader = Reader(ledger)
    old, new = before.stores_by_name, after.stores_by_name
    compared: list[StoreComparison] = []
    try:
        for name in sorted(old.keys() | new.keys()):
            pins = _pin(old.get(name), current, before), _pin(new.get(name), built, after)
            compared.append(await _compare_store(reader, name, *pins))
    finally:
        await reader.workers.close()
    return compared


def _pin(store: StoreInfo | None, snapshot: Snapshot, generation: GenerationInfo) -> Pin | None:
    return None if store is None else Pin(store, snapshot, generation)


async def _compare_store(
    reader: Reader, name: str, before: Pin | None, after: Pin | None
) -> StoreComparison:
    """Compare all entries of a store, and add up its numbers."""
    if after is None:
        return StoreComparison(name, "removed")
    sums = _Sums(), _Sums()
    if before is None:
        async for entry in entries_of(reader, after):
            sums[1].add(entry)
        return StoreComparison(name, "new", (0, sums[1].entries))
    found = Differences()
    both = _added(entries_of(reader, before), sums[0]), _added(entries_of(reader, after), sums[1])
    async for kind, old, new in pairs(*both):
        if kind is None:
            found.same += 1
        else:
            found.add(kind, old, new, _EXAMPLES)
    totals: dict[str, tuple[Number, Number]] = {}
    for field_name in dict.fromkeys((*sums[0].totals, *sums[1].totals)):
        totals[field_name] = sums[0].totals[field_name], sums[1].totals[field_name]
    differs = found.changed or found.missing or found.added
    state = "differs" if differs else "same"
    return StoreComparison(name, state, (sums[0].entries, sums[1].entries), totals, found)


class _Sums:
    """The number of entries, and the sums of the numbers in their values."""

    def __init__(self) -> None:
        self.entries = 0
        self.totals: dict[str, Number] = defaultdict(int)

    def add(self, entry: Entry) -> None:
        self.entries += 1
        value = _DECODER.decode(entry.value)
        fields: Mapping[str, Any] = value if isinstance(value, dict) else {"value": value}
        for name, number in fields.items():
            if isinstance(number, int | Decimal) and not isinstance(number, bool):
                self.totals[name] += number


async def _added(entries: AsyncIterator[Entry], sums: _Sums) -> AsyncIterator[Entry]:
    """Yield the entries, and add them to the sums."""
    async for entry in entries:
        sums.add(entry)
        yield entry


def _text(value: msgspec.Raw | None) -> str:
    if value is None:
        return "nothing"
    text = bytes(value).decode()
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"
