"""Durations as people read them."""

from __future__ import annotations

import pytest

from sluice.values.phrases import duration_text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 s"),
        (250, "250 ms"),
        (15_000, "15 s"),
        (90_500, "1 min 30 s 500 ms"),
        (7_200_000, "2 h"),
        (172_800_000, "2 d"),
        (-5_000, "-5 s"),
    ],
)
def test_a_duration_is_exact_and_in_the_units_of_a_person(ms: int, text: str) -> None:
    assert duration_text(ms) == text
