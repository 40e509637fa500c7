"""Times in queries and answers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sluice.errors import QueryError
from sluice.query.time_texts import parse_time, time_text
from sluice.values.utc_times import utc_datetime

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("-1", -1),
        ("1670230515000", 1_670_230_515_000),
        ("20221205", 1_670_198_400_000),
        ("2022-12-05", 1_670_198_400_000),
        ("2022-12-05T08:55:15", 1_670_230_515_000),
        ("2022-12-05T09:55:15.5+01:00", 1_670_230_515_500),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999),
    ],
)
def test_times_and_epoch_milliseconds(text: str, ms: int) -> None:
    assert parse_time("from", text) == ms


@pytest.mark.parametrize(
    "text", ["2022", "202212", "1670230", "zzz", "", "-", "--1", "²", "9" * 20]
)
def test_what_could_be_a_year_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match=r"^`from` is not a time\. .* at least 10 digits"):
        parse_time("from", text)


def test_times_after_the_year_9999_become_its_last_microsecond() -> None:
    assert utc_datetime(253_402_300_799_000) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert [utc_datetime(253_402_300_800_000 + ms) for ms in (0, 10**15)] == [
        datetime.max.replace(tzinfo=UTC)
    ] * 2
    assert [utc_datetime(-62_135_596_800_000 - ms) for ms in (0, 1, 10**15)] == [
        datetime.min.replace(tzinfo=UTC)
    ] * 3
    assert time_text(1_670_230_515_000) == "2022-12-05T08:55:15"
