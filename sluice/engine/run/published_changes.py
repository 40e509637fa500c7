"""Lists a pipeline's changes since its newest snapshot, and their effects on the next run.

`compatibility` decides whether the state still fits, as in a run. The other changes never stop a
run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from sluice.engine.run.changed_steps import changed_steps
from sluice.engine.run.compatibility import (
    changed_functions,
    incompatible_changes,
    removed_stores,
    stores_of_processors,
)
from sluice.state.model import GenerationInfo
from sluice.values.contract_changes import contract_changes
from sluice.values.interfaces import changes_of_records, fields_of
from sluice.values.phrases import listed


class Weight(IntEnum):
    """The importance of a change for the people who release it."""

    NOTE = 0
    """Runs continue as before."""
    WARNING = 1
    """Runs continue, but results change, or readers of an output must know of the change."""
    STOP = 2
    """Runs stop before they read a record, until a command is called."""


@dataclass(frozen=True)
class PipelineChange:
    """One change of a pipeline."""

    weight: Weight
    text: str
    """A description of the change."""
    effect: str
    """The change's effect, as a full sentence."""

    def __str__(self) -> str:
        return f"{self.text}. {self.effect}"


def published_changes(before: GenerationInfo, now: GenerationInfo) -> list[PipelineChange]:
    """List the changes since the generation `before` was registered, the most serious first."""
    changes = [*_of_state(before, now), *_with_fitting_state(before, now)]
    # The text of a change that stops runs already names the changed steps, with all steps before
    # them.
    if all(change.weight is not Weight.STOP for change in changes):
        changes += _of_steps(before, now)
    return sorted(changes, key=lambda change: -change.weight)


def warnings_of(before: GenerationInfo, now: GenerationInfo) -> list[str]:
    """List warnings of changed contracts and outputs that are compatible with the state."""
    changes = _with_fitting_state(before, now)
    return [str(change) for change in changes if change.weight is Weight.WARNING]


def _with_fitting_state(before: GenerationInfo, now: GenerationInfo) -> list[PipelineChange]:
    # Every pipeline reads a topic and so has contracts, but earlier versions of Sluice did not
    # record them.
    if not before.contracts:
        return []
    return [*_of_contracts(before, now), *_of_outputs(before, now)]


def _of_state(before: GenerationInfo, now: GenerationInfo) -> Iterator[PipelineChange]:
    removed = {f"store {name} was removed" for name in removed_stores(before, now)}
    for text in incompatible_changes(before, now):
        effect = "A run stops before it reads a record."
        if text in removed:
            effect += (
                " Its entries are kept until you delete them: "
                f"sluice rebuild {now.pipeline} --changed-only."
            )
        yield PipelineChange(Weight.STOP, text, effect)
    for name in changed_functions(before, now):
        kept = "The state that the old code computed is kept."
        effect = f"{kept} To compute it again: sluice rebuild {now.pipeline}."
        yield PipelineChange(Weight.WARNING, f"the code of {name} has changed", effect)
    gained, lost = stores_of_processors(before, now)
    for name in gained:
        yield PipelineChange(Weight.NOTE, f"store {name} of a processor is new", "It starts empty.")
    for name in lost:
        text = f"store {name} of a processor was removed"
        yield PipelineChange(Weight.WARNING, text, "Queries no longer find it.")


def _of_steps(before: GenerationInfo, now: GenerationInfo) -> Iterator[PipelineChange]:
    for text in changed_steps(before.description, now.description):
        effect = "Later results are computed in the new way, and earlier results stay as they are."
        yield PipelineChange(Weight.NOTE, text, effect)


def _of_contracts(before: GenerationInfo, now: GenerationInfo) -> Iterator[PipelineChange]:
    for topic in sorted(before.contracts.keys() & now.contracts.keys()):
        for change in contract_changes(before.contracts[topic], now.contracts[topic]):
            text = f"contract of {topic}: {change.text}"
            if not change.rejected:
                yield PipelineChange(
                    Weight.NOTE, text, "Records that were accepted are still accepted."
                )
                continue
            effect = (
                f"From the next run on, {change.rejected} become dead letters, unless the source "
                f"has another `on_error`. That includes unread records that are in {topic} "
                "already, and in a rebuild all earlier records."
            )
            yield PipelineChange(Weight.WARNING, text, effect)


def _of_outputs(before: GenerationInfo, now: GenerationInfo) -> Iterator[PipelineChange]:
    for name in sorted(before.outputs.keys() | now.outputs.keys()):
        if name not in now.outputs:
            effect = "It keeps its records and gets no more. Programs that read it get no error."
            yield PipelineChange(Weight.WARNING, f"output {name} was removed", effect)
        elif name not in before.outputs:
            effect = "It gets results of records that the next runs read, but no earlier results."
            yield PipelineChange(Weight.NOTE, f"output {name} is new", effect)
        else:
            yield from _of_output(name, before, now)


def _of_output(name: str, before: GenerationInfo, now: GenerationInfo) -> Iterator[PipelineChange]:
    for change in changes_of_records(before.outputs[name], now.outputs[name]):
        effect = "Programs that read it get other keys or values in later records."
        yield PipelineChange(Weight.WARNING, f"output {name}: {change}", effect)
    old, new = fields_of(before.outputs[name]), fields_of(now.outputs[name])
    removed = sorted(old.keys() - new.keys())
    added = sorted(new.keys() - old.keys())
    other: list[str] = []
    for field in sorted(old.keys() & new.keys()):
        # An unknown type may be unchanged.
        is_known = old[field] and new[field]
        if is_known and old[field] != new[field]:
            other.append(field)
    if removed:
        effect = "Programs that read these fields find none in later records."
        yield PipelineChange(Weight.WARNING, f"output {name} lacks {listed(removed)}", effect)
    for field in other:
        text = f"output {name}: {field} was {old[field]} and is {new[field]}"
        effect = "Programs that read the field get values of another type."
        yield PipelineChange(Weight.WARNING, text, effect)
    if added:
        effect = "Later records have these fields, and earlier ones do not."
        yield PipelineChange(Weight.NOTE, f"output {name} also has {listed(added)}", effect)
