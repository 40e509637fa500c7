"""Expressions that loading accepts and Arrow computes do not end a run, whatever the records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice import Pipeline
from sluice.errors import SluiceError
from sluice.sql.typed_expression import type_expression
from sluice.sql.types import holds_void
from tests.pipelines.conftest import Drive
from tests.support.odd_expressions import Odd, OddExpressions

RECORDS = [
    {
        "text": "a", "whole": 1, "share": 0.5, "amount": "1.25", "flag": True, "at": "2026-01-01T00:00:00Z",
        "day": "2026-01-01", "data": "YWI=", "tags": ["a", "b"], "lines": [{"product": 1, "price": 2.5}],
        "sizes": {"a": 1}, "line": {"product": 3}, "any": {"x": [1]}, "all": "z",
    },
    {
        "text": "", "whole": -(2**63), "share": -0.0, "amount": "0", "flag": False, "at": "0002-01-01T00:00:00Z",
        "day": "9998-12-31", "data": "", "tags": [], "lines": [], "sizes": {}, "line": {"product": 0, "price": None},
        "any": None,
    },
    {
        "text": "2026-01-01", "whole": 2, "share": 1e300, "amount": "-9999999999.99", "flag": True,
        "at": "2026-12-31T23:59:59.999999Z", "day": "0001-01-01", "data": "/w==", "tags": ["ä", "\U0001f600", ""],
        "lines": [{"product": 1}], "sizes": {"a": 5, "": 2}, "line": {"product": 3}, "any": "text",
    },
]  # fmt: skip


def computed_by_arrow(first: int, count: int) -> Iterator[str]:
    stream = Pipeline("accepted").stream("in", value=Odd)
    types = stream._types()
    for seed in range(first, first + count):
        text = OddExpressions(seed).expression()
        try:
            stream.select(x=text)
        except SluiceError:
            continue
        typed = type_expression(text, types)
        if not typed.why_spark and not holds_void(typed.type):
            yield text


HEAVY = [pytest.param(first, marks=pytest.mark.heavy) for first in range(1000, 21_000, 1000)]


@pytest.mark.parametrize("first", [0, *HEAVY])
def test_odd_expressions_give_results_or_dead_letters(drive: Drive, first: int) -> None:
    texts = list(dict.fromkeys(computed_by_arrow(first, 1000)))
    assert len(texts) > 50
    for start in range(0, len(texts), 40):
        some = texts[start : start + 40]
        pipeline = Pipeline("odd", max_rejected=1.0, max_failures=1.0, workers=1)
        stream = pipeline.stream("in", value=Odd)
        for number, text in enumerate(some):
            stream.select(x=text).to(f"out{number}")
        driver = drive(pipeline)
        for record in RECORDS:
            driver.pipe("in", record, "k")
        outputs = [len(driver.output(f"out{number}")) for number in range(len(some))]
        failed = len(driver.dead_letters())
        assert sum(outputs) + failed == len(RECORDS) * len(some)
