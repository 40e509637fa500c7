"""A wrong definition of a window is an error when the file is loaded: what is wrong, where, and what to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sluice import (
    custom_windows,
    every_records,
    hopping,
    last_records,
    session,
    sliding,
    tumbling,
    within,
)
from sluice.errors import TopologyError

BEFORE = timedelta(seconds=-1)
WRONG: list[tuple[Callable[..., Any], str]] = [
    (lambda: tumbling("0 s"), r'tumbling\(0 s, grace 0 s\) .* the size must be above 0\. .*size="5 minutes"'),
    (lambda: tumbling(BEFORE), r"the size must be above 0\. Write"),
    (lambda: tumbling("0 months"), r"the size must be above 0\. Write"),
    (lambda: tumbling("-5 s"), r"'-5 s' .* is not a duration\. Write"),
    (lambda: tumbling("1.5 minutes"), r"is not a duration\. Write"),
    (lambda: tumbling(5), r'5 .* is not a duration\. Write .*"5 seconds"'),  # type: ignore[arg-type]
    (lambda: tumbling(timedelta(microseconds=1_500)), r"not a whole number of milliseconds\. .*milliseconds=1\)"),
    (lambda: tumbling("1 m", grace=BEFORE), r'grace must be at least 0\. .*grace="15 seconds"'),
    (lambda: tumbling("1 day", zone="UTC", grace=BEFORE), r"grace must be at least 0\. Write"),
    (lambda: tumbling("1 day", zone="Berlin"), r"not the name of a time zone\. .*Europe/Berlin"),
    (lambda: tumbling("1 day", offset=timedelta(hours=-1)), r'offset must be at least 0 .*offset="18 hours"'),
    (lambda: tumbling("1 day", offset="25 hours"), r"shorter than a window\. Write"),
    (lambda: tumbling("1 m", offset="5 ms"), r"begin at whole seconds\. Write"),
    (lambda: hopping("1 m", advance="0 s"), r"hopping\(1 min, every 0 s\) .* the advance must be above 0\. Write"),
    (lambda: hopping("1 m", advance=BEFORE), r"the advance must be above 0\. Write"),
    (lambda: hopping("0 s", advance="1 s"), r"the size must be above 0\. Write"),
    (lambda: hopping("1 m", advance="2 m"), r"would be in no window\. Make the advance at most 1 min"),
    (lambda: hopping("1 m", advance="1 m", grace=BEFORE), r"grace must be at least 0\. Write"),
    (lambda: hopping("1 day", advance="0 s", zone="UTC"), r"the advance must be above 0\. Write"),
    (lambda: sliding(BEFORE), r"the size must be at least 0\. Write"),
    (lambda: sliding("1 m", BEFORE), r"grace must be at least 0\. Write"),
    (lambda: session(BEFORE), r'the gap must be at least 0\. .*gap="5 minutes"'),
    (lambda: session("1 m", BEFORE), r"grace must be at least 0\. Write"),
    (lambda: custom_windows(5), r"expected a function of \(time\), got int: 5\. Pass"),  # type: ignore[arg-type]
    (lambda: custom_windows(lambda time: [], BEFORE), r"grace must be at least 0\. Write"),
    (lambda: every_records(0), r"an int of at least 1\. Write for example every_records\(10\)"),
    (lambda: last_records(True), r"an int of at least 1\. Write"),
    (lambda: within(BEFORE), r"the window ends before it starts\. Write"),
    (lambda: within("1 m", grace=BEFORE), r"grace must be at least 0\. Write"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_a_wrong_window_is_an_error_with_its_line_and_what_to_write(number: int) -> None:
    define, says = WRONG[number]
    with pytest.raises(TopologyError, match=says) as error:
        define()
    assert "test_wrong_windows.py:" in error.value.detail


def test_a_window_may_lie_before_or_after_a_record() -> None:
    assert (
        str(within(before=timedelta(seconds=-5), after="10 s"))
        == "within(-5 s before, 10 s after, grace 0 s)"
    )
