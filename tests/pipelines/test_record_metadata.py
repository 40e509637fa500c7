"""The time and the headers of records, set by SQL expressions, as a processor sets them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from sluice import Headers, Pipeline, Record, ValueContext, tumbling
from sluice.errors import TopologyError
from sluice.operators.base import Row
from sluice.operators.set_metadata import SetMetadata
from sluice.plan import plan
from sluice.testing import TopologyTestDriver
from sluice.topology import Stream, drawing
from tests.pipelines.conftest import Drive


class Click(Struct):
    page: str
    at: int
    trace: str | None = None


class Stamped:
    """What the expressions of these tests do, as a processor."""

    def init(self, context: ValueContext) -> None:
        self.context = context

    def process(self, record: Record[Click]) -> None:
        click = record.value
        headers = record.headers.remove("old").remove("trace")
        if click.trace is not None:
            headers = headers.set("trace", click.trace)
        headers = headers.set("page", click.page)
        self.context.forward(click, time=click.at, headers=headers)


def by_expressions(clicks: Stream[Click]) -> Stream[Any]:
    timed = clicks.with_time("timestamp_millis(at)")
    return timed.with_headers({"old": "NULL", "trace": "trace", "page": "page"})


def by_select(clicks: Stream[Click]) -> Stream[Any]:
    return clicks.select(
        "page",
        "at",
        "trace",
        _timestamp="timestamp_millis(at)",
        _headers={"old": "NULL", "trace": "trace", "page": "page"},
    )


def by_processor(clicks: Stream[Click]) -> Stream[Any]:
    return clicks.process_values(Stamped, returns=Click).output


def results(driver: TopologyTestDriver) -> dict[str, Any]:
    outputs: dict[str, Any] = {}
    for topic in ("stamped", "late", "counts"):
        outputs[topic] = [
            (r.key, r.value, r.timestamp, r.header_pairs) for r in driver.output(topic)
        ]
    return outputs | {"store": driver.store("clicks"), "counts": driver.counts()["read"]}


@pytest.mark.parametrize("by_one", [False, True], ids=["one batch", "a batch per record"])
def test_expressions_set_time_and_headers_as_a_processor_does(drive: Drive, by_one: bool) -> None:
    written: list[dict[str, Any]] = []
    for how in (by_processor, by_expressions, by_select):
        pipeline = Pipeline(how.__name__, workers=2)
        stamped = how(pipeline.stream("clicks", value=Click))
        stamped.to("stamped")
        windows = stamped.group_by("page").windowed_by(tumbling("10 ms"), late="late")
        windows.count(store="clicks").to_stream().to("counts")
        driver = drive(pipeline)
        sent = [("a", 5, "x"), ("a", 25, None), ("b", 30, "y"), ("a", 7, "z"), (None, 31, "w")]
        for number, (key, at, trace) in enumerate(sent):
            own: list[tuple[str, str | bytes | None]] = [
                ("old", "1"),
                ("trace", "own"),
                ("kept", "k"),
                ("kept", b"\xff"),
            ]
            click = {"page": "home", "at": at, "trace": trace}
            driver.pipe("clicks", click, key, timestamp=1_000 + number, headers=own)
            if by_one:
                driver.commit()
        written.append(results(driver))
    first, *others = written
    assert first["stamped"][0] == (
        "a",
        {"page": "home", "at": 5, "trace": "x"},
        5,
        (("kept", "k"), ("kept", b"\xff"), ("trace", "x"), ("page", "home")),
    )
    assert first["store"] == {("home", 0, 10): 1, ("home", 20, 30): 1, ("home", 30, 40): 2}
    assert [time for *_, time, _ in first["late"]] == [7]
    for other in others:
        assert other == first


def test_a_record_without_a_valid_time_is_rejected(drive: Drive) -> None:
    pipeline = Pipeline("invalid", workers=2)
    clicks = pipeline.stream("clicks", value=Click)
    clicks.with_time("timestamp_millis(nullif(at, 0))").map_values("page").to("stamped")
    clicks.with_time("timestamp_millis(at)", on_error="skip").map_values("at").to("skipped")
    driver = drive(pipeline)
    for at in (0, -1, 4_102_444_800_000, 253_402_300_800_000):
        driver.pipe("clicks", {"page": "home", "at": at}, "k")
    assert [record.timestamp for record in driver.output("stamped")] == [4_102_444_800_000]
    assert [record.value for record in driver.output("skipped")] == [0, 4_102_444_800_000]
    details = sorted(letter.headers["sluice.detail"] for letter in driver.dead_letters())
    assert details == [
        *["ValueError: the time of the record is not in the years 1970 to 9999"] * 2,
        "ValueError: the time of the record is null",
    ]
    assert driver.counts()["failed/setmetadata-4"] == 2


def test_windowed_records_keep_their_windows(drive: Drive) -> None:
    pipeline = Pipeline("windowed", workers=2)
    windows = pipeline.stream("clicks", value=Click).group_by_key().windowed_by(tumbling("10 ms"))
    counts = windows.count(store="counts").to_stream()
    counts.with_time("_window_end").with_headers({"start": "CAST(_window_start AS STRING)"}).to(
        "timed"
    )
    driver = drive(pipeline)
    driver.pipe("clicks", {"page": "home", "at": 1}, "a", timestamp=25)
    (record,) = driver.output("timed")
    assert (record.key, record.value, record.timestamp) == ("a", 1, 30)
    assert record.headers == {
        "start": "1970-01-01 00:00:00.02",
        "window_start": "20",
        "window_end": "30",
    }


class Sent:
    """Keeps the headers of each result."""

    def __init__(self) -> None:
        self.headers: str | None = None
        self.sent: list[Headers] = []

    def emit(self, *_: Any, **__: Any) -> None:
        self.sent.append(Headers.of_json(self.headers))

    def hold(self) -> None: ...

    def release(self) -> None: ...


def test_the_value_of_a_header_can_be_bytes() -> None:
    own, out = Headers([("id", b"\x00"), ("other", None)]), Sent()
    row = Row("k", "1", 5, 5, 5, foreign='["FF00",null]', headers=own.json())
    SetMetadata(False, (("id", True), ("missing", True))).process(None, row, out)  # type: ignore[arg-type]
    assert out.sent == [Headers([("other", None), ("id", b"\xff\x00")])]
    pipeline = Pipeline("bytes")
    pipeline.stream("clicks", value=Click).with_headers({"page": "CAST(page AS BINARY)"}).to("out")
    (operator,) = plan(pipeline).job.operators
    assert operator.action == SetMetadata(False, (("page", True),))


def test_values_that_are_no_objects_and_null_values_keep_their_kind(drive: Drive) -> None:
    pipeline = Pipeline("kinds", workers=2)
    texts = pipeline.stream("texts", value=str, nulls="keep")
    texts.with_headers({"length": "CAST(length(value) AS STRING)"}).to("measured", value=str)
    driver = drive(pipeline)
    for text in ("abc", None, ""):
        driver.pipe("texts", text, headers=Headers([("length", "0")]))
    assert [(r.value, r.headers) for r in driver.output("measured")] == [
        ("abc", {"length": "3"}),
        (None, {}),
        ("", {"length": "0"}),
    ]


def test_wrong_times_and_headers_are_errors() -> None:
    pipeline = Pipeline("wrong")
    clicks = pipeline.stream("clicks", value=Click)
    with pytest.raises(TopologyError, match=r"reads unknown fields: created"):
        clicks.with_time("created")
    with pytest.raises(TopologyError, match=r"with_headers at .* needs at least one header"):
        clicks.with_headers({})
    with pytest.raises(TopologyError, match=r"a header cannot have the name 'sluice.trace'"):
        clicks.select("page", _headers={"sluice.trace": "trace"})
    with pytest.raises(TopologyError, match=r"a header cannot have the name '\\ud800'") as refused:
        clicks.with_headers({"\ud800": "page"})
    assert "Unicode text" in refused.value.next_step
    with pytest.raises(TopologyError, match=r"expected headers as {name: SQL expression}, got str"):
        clicks.with_headers("trace")  # type: ignore[arg-type]
    pipeline.stream("others", value=Click).with_time("at").to("late")
    with pytest.raises(
        TopologyError, match=r"_timestamp must be TIMESTAMP, but is BIGINT"
    ) as refused:
        plan(pipeline)
    assert "timestamp_millis" in refused.value.next_step
    pipeline = Pipeline("wrong_header")
    pipeline.stream("clicks", value=Click).with_headers({"at": "at"}).to("out")
    with pytest.raises(TopologyError, match=r"header 'at' must be BINARY or STRING, but is BIGINT"):
        plan(pipeline)
    stamped = (
        Pipeline("shown").stream("clicks", value=Click).select("page", _timestamp="_timestamp")
    )
    with pytest.raises(TopologyError, match="_headers"):
        stamped.filter("_headers['trace'] IS NULL")
    assert "set time: _timestamp = new_time" in drawing.text(stamped.pipeline)  # type: ignore[arg-type]
