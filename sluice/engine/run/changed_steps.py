"""The steps whose texts differ between two descriptions of a topology (`topology.drawing.text`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_LISTED_ELSEWHERE = ("topic ", "table ", "stream ", "global table ")
"""The texts of inputs and outputs begin like this. New and removed inputs and outputs are listed as
separate changes."""


def changed_steps(before: str, now: str) -> list[str]:
    """Say which steps of a topology are new, removed, changed or in another order.

    The first line of a description has the pipeline's own settings; each further line describes one
    step.
    """
    if not before:
        # An earlier version of Sluice has registered the generation.
        return []
    settings_before, *steps_before = before.splitlines()
    settings_now, *steps_now = now.splitlines()
    changes: list[str] = []
    if settings_before != settings_now:
        changes.append(f"{settings_before!r} became {settings_now!r}")
    removed, added = _missing(steps_before, steps_now), _missing(steps_now, steps_before)
    for step in removed:
        if (changed := _same_kind(step, added)) is not None:
            added.remove(changed)
            changes.append(f"step {step!r} became {changed!r}")
        elif not step.startswith(_LISTED_ELSEWHERE):
            changes.append(f"step {step!r} was removed")
    for step in added:
        if not step.startswith(_LISTED_ELSEWHERE):
            changes.append(f"step {step!r} is new")
    if not removed and not added and steps_before != steps_now:
        changes.append("the steps are in another order")
    return changes


def _missing(lines: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the steps that are in `lines` but not in `others`, ignoring indentation."""
    not_found = Counter(map(str.strip, others))
    missing: list[str] = []
    for step in map(str.strip, lines):
        if not_found[step]:
            not_found[step] -= 1
        else:
            missing.append(step)
    return missing


def _same_kind(step: str, others: Sequence[str]) -> str | None:
    """Return the first of other steps with the same title, such as `filter` or `store totals`."""
    title = step.partition(":")[0]
    for other in others:
        if other.partition(":")[0] == title:
            return other
    return None
