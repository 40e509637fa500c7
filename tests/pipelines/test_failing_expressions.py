"""An expression without a result for a record rejects the record at its step, and changes nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from sluice import Pipeline, Stream, tumbling
from sluice.errors import EngineError
from sluice.testing import TopologyTestDriver
from sluice.values.record_metadata import OnError
from tests.pipelines.conftest import Drive
from tests.pipelines.test_checking import check


class Trip(Struct):
    """A trip: kilometres, hours, and a number of people that somebody typed."""

    km: int
    hours: int
    people: str = "1"


class Photo(Struct):
    """Two texts whose bytes are in base64."""

    tag: bytes
    other: bytes


class Text(Struct):
    s: str


GOOD = [Trip(4, 2), Trip(6, 3), Trip(7, 7)]
NO_TIME = Trip(5, 0)
MISTYPED = Trip(9, 3, "two")


def send(driver: TopologyTestDriver, trips: list[Trip], cut: str) -> None:
    for at, trip in enumerate(trips):
        driver.pipe(
            "trips", {"km": trip.km, "hours": trip.hours, "people": trip.people}, "k", timestamp=at
        )
        if cut == "each" or (cut == "two batches" and at == 1):
            driver.commit()


def with_every_step(name: str) -> Pipeline:
    pipeline = Pipeline(name)
    trips = pipeline.stream("trips", value=Trip)
    trips.select(speed="km / hours").to("speeds")
    trips.filter("km DIV hours > 1").map_values("km").to("fast")
    trips.select_key("CAST(CAST(people AS INT) AS STRING)").map_values("km").to("by_people")
    trips.flat_map_values("array(km DIV hours, 0)").to("elements")
    trips.group_by("km DIV hours").count(store="trips_by_speed")
    trips.group_by_key().aggregate(store="fastest", speed="max(km DIV hours)", all="sum(km)")
    trips.group_by_key().count(store="all_trips")
    towns = pipeline.table("towns", value=Trip)
    seen = trips.left_join(towns).select(km="left.km", speed="left.km DIV left.hours")
    seen.map_values("speed").to("speeds_seen")
    seen.group_by_key().aggregate(
        store="last_speed", speed="last(speed)", share="sum(km / (km - 6))"
    )
    trips.select(root="sqrt(km - 6)").map_values("root").to("roots")
    return pipeline


@pytest.mark.parametrize("cut", [pytest.param("one batch", marks=pytest.mark.heavy), "two batches"])
def test_every_kind_of_step_continues_without_the_record(drive: Drive, cut: str) -> None:
    driver = drive(with_every_step("steps"))
    send(driver, [GOOD[0], NO_TIME, MISTYPED, GOOD[1], GOOD[2]], cut)

    def values(topic: str) -> list[object]:
        return [record.value for record in driver.output(topic)]

    assert values("speeds") == [{"speed": 2.0}, {"speed": 3.0}, {"speed": 2.0}, {"speed": 1.0}]
    assert values("fast") == [4, 9, 6]
    assert [(record.key, record.value) for record in driver.output("by_people")] == [
        ("1", 4), ("1", 5), ("1", 6), ("1", 7),
    ]  # fmt: skip
    assert values("elements") == [2, 0, 3, 0, 2, 0, 1, 0]
    assert driver.store("trips_by_speed") == {"1": 1, "2": 2, "3": 1}
    assert driver.store("fastest") == {
        "k": {"speed": 3, "all": 26}
    }  # the record counts in neither column
    assert driver.store("all_trips") == {"k": 5}
    assert values("speeds_seen") == [2, 3, 2, 1]
    # Of (km, km - 6): 4/-2, 9/3, 6/0 which is rejected, 7/1.
    assert driver.store("last_speed") == {"k": {"speed": 1, "share": 8.0}}
    assert values("roots") == [pytest.approx(3**0.5), 0.0, 1.0]


@pytest.mark.parametrize("cut", ["one batch", pytest.param("each", marks=pytest.mark.heavy)])
def test_a_dead_letter_names_the_step_and_the_failing_part(drive: Drive, cut: str) -> None:
    pipeline = Pipeline("letters")
    trips = pipeline.stream("trips", value=Trip)
    trips.select(speed="1 + km / hours").to("speeds")
    trips.deduplicate("km", within="1 ms").select(people="1 + CAST(people AS INT)").to("people")
    driver = drive(pipeline)
    send(driver, [GOOD[0], NO_TIME, MISTYPED], cut)
    before, behind = driver.dead_letters()
    assert before.key == behind.key == "k"
    assert before.value == {"km": 5, "hours": 0, "people": "1"}
    assert before.headers["sluice.reason"] == "processing"
    assert before.headers["sluice.detail"] == "DIVIDE_BY_ZERO in km / hours"
    assert before.headers["sluice.step"] == "select"
    assert before.headers["sluice.at"].startswith("test_failing_expressions.py:")
    assert (before.headers["sluice.topic"], before.headers["sluice.offset"]) == ("trips", "1")
    assert behind.value == {"km": 9, "hours": 3, "people": "two"}
    assert behind.headers["sluice.detail"] == "CAST_INVALID_INPUT in CAST(people AS INT)"
    assert (behind.headers["sluice.topic"], behind.headers["sluice.offset"]) == ("trips", "2")
    counts = driver.counts()
    assert sum(number for name, number in counts.items() if name.startswith("failed/")) == 2


def with_policy(trips: Stream[Trip], step: str, on_error: OnError) -> None:
    """Write what a step makes of trips to a topic of its own."""
    match step:
        case "before an ordered step":
            trips.select(speed="km DIV hours", on_error=on_error).to(TOPICS[step])
        case "behind one":
            trips.deduplicate("km", within="1 ms").select(
                speed="km DIV hours", on_error=on_error
            ).to(TOPICS[step])
        case _:
            counts = trips.group_by("people").count(store="n")
            counts.select(inverse="1 DIV CAST(_key AS INT)", on_error=on_error).to(TOPICS[step])


TOPICS = {
    "before an ordered step": "before",
    "behind one": "behind",
    "between a store and its topic": "between",
}


@pytest.mark.parametrize(
    "steps", [["before an ordered step", "behind one"], ["between a store and its topic"]]
)
def test_steps_may_skip_the_record(drive: Drive, steps: list[str]) -> None:
    pipeline = Pipeline("policies")
    trips = pipeline.stream("trips", value=Trip)
    for step in steps:
        with_policy(trips, step, "skip")
    driver = drive(pipeline)
    send(driver, [GOOD[0], MISTYPED if len(steps) == 1 else NO_TIME], "one batch")
    assert [len(driver.output(TOPICS[step])) for step in steps] == [1] * len(steps)
    assert driver.dead_letters() == []
    assert sum(
        number for name, number in driver.counts().items() if name.startswith("failed/")
    ) == len(steps)


@pytest.mark.parametrize(
    "step",
    [
        "before an ordered step",
        pytest.param("behind one", marks=pytest.mark.heavy),
        "between a store and its topic",
    ],
)
def test_a_step_may_end_the_run(drive: Drive, step: str) -> None:
    pipeline = Pipeline("policies")
    with_policy(pipeline.stream("trips", value=Trip), step, "fail")
    driver = drive(pipeline)
    send(driver, [GOOD[0], MISTYPED if step.startswith("between") else NO_TIME], "one batch")
    with pytest.raises(
        EngineError, match=r"(?s)at test_failing_expressions.py:\d+.*(DIVIDE_BY_ZERO|CAST)"
    ):
        driver.commit()


@pytest.mark.parametrize("cut", ["one batch", pytest.param("each", marks=pytest.mark.heavy)])
def test_an_expression_over_aggregates_without_a_result_rejects_the_last_record(
    drive: Drive, cut: str
) -> None:
    """The store keeps the key's last result. The functions include the record, so that later results do, too."""
    pipeline = Pipeline("averages")
    trips = pipeline.stream("trips", value=Trip).group_by("people")
    trips.aggregate(store="speeds", speed="sum(km) / sum(hours)", km="sum(km)").to_stream().to(
        "speeds"
    )
    trips.aggregate(store="skipped", ratio="max(km) DIV min(hours)", on_error="skip")
    windows = trips.windowed_by(tumbling("10 ms")).aggregate(
        store="windows", people="CAST(max(people) AS INT)"
    )
    windows.suppress_until_window_closes().to("closed")
    driver = drive(pipeline)
    send(driver, [NO_TIME, GOOD[0], Trip(8, 0), MISTYPED, *[GOOD[2]] * 20], cut)
    speeds = {record.key: record.value for record in driver.output("speeds")}
    assert speeds["two"] == {"speed": 3.0, "km": 9}
    assert driver.output("speeds")[0].value == {"speed": 4.5, "km": 9}
    assert driver.store("speeds") == {"1": speeds["1"], "two": speeds["two"]}
    assert driver.store("skipped") == {"two": {"ratio": 3}}
    assert {record.key for record in driver.output("closed")} == {"1"}
    at_speeds, at_windows = driver.dead_letters()
    assert at_speeds.headers["sluice.step"] == "store speeds"
    assert at_speeds.headers["sluice.detail"] == "DIVIDE_BY_ZERO in `sum(km)` / `sum(hours)`"
    assert (at_speeds.headers["sluice.offset"], at_speeds.value) == (
        "0",
        {"sum(km)": 5, "sum(hours)": 0},
    )
    assert at_windows.headers["sluice.detail"] == "CAST_INVALID_INPUT in CAST(`max(people)` AS INT)"
    assert at_windows.headers["sluice.offset"] == "3"


def test_an_expression_over_aggregates_may_end_the_run(drive: Drive) -> None:
    pipeline = Pipeline("ends")
    trips = pipeline.stream("trips", value=Trip).group_by_key()
    trips.aggregate(store="speeds", speed="sum(km) / sum(hours)", on_error="fail")
    driver = drive(pipeline)
    send(driver, [NO_TIME], "one batch")
    with pytest.raises(
        EngineError, match=r"(?s)at test_failing_expressions.py:\d+.*DIVIDE_BY_ZERO"
    ):
        driver.commit()


@pytest.mark.spark
def test_a_number_that_json_cannot_represent_is_rejected(drive: Drive) -> None:
    pipeline = Pipeline("finite")
    trips = pipeline.stream("trips", value=Trip)
    trips.select(root="sqrt(km - 6)", all="array(struct(ln(hours - 1) AS log))").to("out")
    driver = drive(pipeline)
    send(driver, [Trip(7, 2), Trip(5, 2), Trip(7, 1), Trip(7, 0)], "one batch")
    assert (
        len(driver.output("out")) == 1 + 2
    )  # Spark's ln returns null where the logarithm is undefined.
    (letter,) = driver.dead_letters()
    assert letter.headers["sluice.detail"].startswith("NOT_FINITE")


class Root(Struct):
    root: float
    roots: dict[str, float]


def rooted(frame: DataFrame) -> DataFrame:
    root = F.sqrt(F.col("km") - 6)
    return frame.withColumn("root", F.lit(1.0)).withColumn("roots", F.create_map(F.lit("km"), root))


@pytest.mark.spark
def test_texts_and_dataframes_that_make_numbers_json_cannot_represent_are_rejected(
    drive: Drive,
) -> None:
    pipeline = Pipeline("not_finite")
    texts = pipeline.stream("texts", value=str)
    texts.select(number="TRY_CAST(value AS DOUBLE)").to("numbers")
    texts.group_by("TRY_CAST(value AS FLOAT)").count(store="counts")
    pipeline.stream("trips", value=Trip).transform(rooted, returns=Root).to("roots")
    driver = drive(pipeline)
    for text in ("NaN", "-Infinity", "0.5", "none"):
        driver.pipe("texts", text, text)
    for km in (7, 5):
        driver.pipe("trips", {"km": km, "hours": 1}, f"{km} km")
    assert [(record.key, record.value["number"]) for record in driver.output("numbers")] == [
        ("0.5", 0.5),
        ("none", None),
    ]
    assert driver.store("counts") == {"0.5": 1}
    assert [record.value for record in driver.output("roots")] == [
        {"root": 1.0, "roots": {"km": 1.0}}
    ]
    letters = {
        (letter.key, letter.headers["sluice.detail"].partition(":")[0])
        for letter in driver.dead_letters()
    }
    assert letters == {("NaN", "NOT_FINITE"), ("-Infinity", "NOT_FINITE"), ("5 km", "NOT_FINITE")}


class Sample(Struct):
    x: float


STATISTICS = (
    "stddev(x)",
    "var_pop(x)",
    "covar_pop(x, x)",
    "skewness(x)",
    "kurtosis(x)",
    "corr(x, x)",
)


def test_a_statistic_that_is_not_finite_is_null(drive: Drive) -> None:
    pipeline = Pipeline("statistics", workers=1)
    by_key = pipeline.stream("samples", value=Sample).group_by_key()
    columns = {f"s{number}": text for number, text in enumerate(STATISTICS)}
    by_key.aggregate(columns, store="statistics").to("written")
    by_key.aggregate(store="nested", both="named_struct('a', var_pop(x), 'b', count(*))")
    driver = drive(pipeline)
    samples: dict[str, list[float]] = {
        "huge": [1.7e308, -1.7e308],
        "equal": [1, 1],
        "one": [1],
        "fine": [1, 2, 4],
    }
    for key, of_key in samples.items():
        for x in of_key:
            driver.pipe("samples", {"x": x}, key)
    stored = driver.store("statistics")
    numbers = [number for values in stored.values() for number in values.values()]
    assert {type(number) for number in numbers} == {float, type(None)}
    assert stored["fine"]["s0"] == pytest.approx(1.5275, abs=1e-4)
    assert (stored["equal"]["s0"], stored["equal"]["s3"], stored["huge"]["s1"]) == (0.0, None, None)
    assert (stored["equal"]["s5"], stored["fine"]["s5"]) == (None, 1.0)
    assert {record.key: record.value for record in driver.output("written")} == stored
    nested = {key: value["both"] for key, value in driver.store("nested").items()}
    assert (nested["huge"], nested["equal"]) == ({"a": None, "b": 2}, {"a": 0.0, "b": 2})


@pytest.mark.spark
def test_a_key_that_is_too_long_is_rejected_in_every_step(drive: Drive) -> None:
    pipeline = Pipeline("keys")
    trips = pipeline.stream("trips", value=Trip)
    trips.group_by_key().count(store="by_key")
    trips.group_by("repeat('k', km)").count(store="by_expression")
    driver = drive(pipeline)
    driver.pipe("trips", {"km": 1, "hours": 1}, "k" * 1024)
    driver.pipe("trips", {"km": 1, "hours": 1}, "k" * 1025)
    driver.pipe("trips", {"km": 1025, "hours": 1}, "a")
    assert driver.store("by_key") == {"k" * 1024: 1, "a": 1}
    assert driver.store("by_expression") == {"k": 1}
    reasons = [
        (letter.headers["sluice.reason"], letter.headers["sluice.detail"])
        for letter in driver.dead_letters()
    ]
    assert sorted(reasons) == [
        ("key_too_long", "the key has 1025 bytes; a key has at most 1024"),
        ("processing", "KEY_TOO_LONG: a key has at most 1024 bytes"),
    ]


@pytest.mark.spark
def test_bytes_that_are_not_text_are_rejected_as_a_key(drive: Drive) -> None:
    pipeline = Pipeline("photos", workers=1)
    photos = pipeline.stream("photos", value=Photo)
    photos.group_by("tag").count(store="by_field")
    photos.select(tag="CAST(other AS STRING)").group_by("tag").count(store="by_expression")
    pipeline.global_table("albums", value=Photo, key="tag")
    driver = drive(pipeline)
    for topic in ("photos", "albums"):
        driver.pipe(topic, {"tag": "YQ==", "other": "Yg=="}, "k")
        driver.pipe(topic, {"tag": "/w==", "other": "Yg=="}, "k")
    driver.pipe("photos", {"tag": "YQ==", "other": "/w=="}, "k")
    assert driver.store("by_field") == {"a": 2}
    assert driver.store("by_expression") == {"b": 1}
    assert [*driver.store("albums")] == ["a"]
    reasons = [
        (letter.headers["sluice.topic"], letter.headers["sluice.reason"])
        for letter in driver.dead_letters()
    ]
    assert sorted(reasons) == [
        ("albums", "key_not_utf8"),
        ("photos", "key_not_utf8"),
        ("photos", "processing"),
    ]


@pytest.mark.spark
def test_bytes_that_are_not_text_are_rejected_as_text(drive: Drive) -> None:
    pipeline = Pipeline("captions", workers=1)
    photos = pipeline.stream("photos", value=Photo)
    captions = {"cast": "CAST(tag AS STRING)", "inner": "concat('tag ', upper(string(tag)))"}
    for name, expression in captions.items():
        photos.select(caption=expression).to(name)
    photos.select(caption="TRY_CAST(tag AS STRING)").to("tried")
    photos.select(caption="IF(other = tag, '', CAST(tag AS STRING))").to("chosen")
    photos.select(bytes="tag", size="length(tag)").to("bytes")
    photos.group_by_key().aggregate({"last": "max(CAST(tag AS STRING))"}, store="captions")
    driver = drive(pipeline)
    for tag in ("YQ==", "/w=="):
        driver.pipe("photos", {"tag": tag, "other": "Yg=="}, "k")
    driver.pipe("photos", {"tag": "/w==", "other": "/w=="}, "k")
    values = {
        name: [record.value["caption"] for record in driver.output(name)]
        for name in (*captions, "tried", "chosen")
    }
    assert values == {
        "cast": ["a"],
        "inner": ["tag A"],
        "tried": ["a", None, None],
        "chosen": ["a", ""],
    }
    assert [record.value["bytes"] for record in driver.output("bytes")] == ["YQ==", "/w==", "/w=="]
    assert driver.store("captions") == {"k": {"last": "a"}}
    assert {letter.headers["sluice.detail"][:8] for letter in driver.dead_letters()} == {"NOT_UTF8"}


def test_a_subexpression_of_two_steps_fails_in_each_separately(drive: Drive) -> None:
    pipeline = Pipeline("common")
    trips = pipeline.stream("trips", value=Trip)
    trips.select(one="km DIV hours").to("one")
    trips.select(other="1 + km DIV hours").to("other")
    driver = drive(pipeline)
    send(driver, [NO_TIME, GOOD[0]], "one batch")
    assert [record.value for record in driver.output("one")] == [{"one": 2}]
    assert [record.value for record in driver.output("other")] == [{"other": 3}]
    assert len(driver.dead_letters()) == 1  # one per record, not one per step
    assert (
        sum(number for name, number in driver.counts().items() if name.startswith("failed/")) == 2
    )


@pytest.mark.parametrize("cut", ["one batch", pytest.param("each", marks=pytest.mark.heavy)])
def test_a_sum_of_integers_is_exact_beyond_64_bits(drive: Drive, cut: str) -> None:
    pipeline = Pipeline("large")
    trips = pipeline.stream("trips", value=Trip).group_by_key()
    trips.aggregate(store="combined", km="sum(km)")
    trips.aggregate(store="ordered", km="sum(km)", last="last(km)")
    read = trips.aggregate(store="read", km="sum(km)", last="last(km)")
    read.select(half="km DIV 2").to("halves")
    driver = drive(pipeline)
    most = 2**63 - 1
    send(driver, [Trip(most, 1), Trip(1, 1), Trip(-7, 1)], cut)
    assert driver.store("combined") == {"k": {"km": most - 6}}
    assert driver.store("ordered") == {"k": {"km": most - 6, "last": -7}}
    assert driver.store("read") == {"k": {"km": most - 7, "last": -7}}
    assert [record.value for record in driver.output("halves")] == [
        {"half": most // 2},
        {"half": (most - 7) // 2},
    ]
    (letter,) = driver.dead_letters()
    assert letter.headers["sluice.detail"].startswith(
        f"OverflowError: the sum {most + 1} does not fit BIGINT"
    )


def test_only_jobs_with_attempts_turn_off_shared_subexpressions(
    spark: SparkSession, tmp_path: Path
) -> None:
    plain = Pipeline("plain")
    plain.stream("trips", value=Trip).select("km").to("lengths")
    shared = []
    for pipeline in (plain, with_every_step("tries"), plain):
        check(spark, pipeline, tmp_path)
        shared.append(spark.conf.get("spark.sql.subexpressionElimination.enabled"))
    assert shared == ["true", "false", "true"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("text", "good", "bad", "why"),
    [
        ("variant_get(parse_json(s), '$.a', 'int')", '{"a": 5}', '{"a": "x"}', "NO_RESULT"),
        (
            "CAST(s AS INT) + variant_get(parse_json('1'), '$', 'int')",
            "5",
            "x",
            "CAST_INVALID_INPUT in CAST(s AS",
        ),
        ("IF(collate(s, 'UTF8_LCASE') = 'abc', 1 / length(''), 1)", "b", "ABC", "DIVIDE_BY_ZERO"),
    ],
)
def test_a_part_that_sqlglot_writes_wrongly_is_left_out_of_the_error(
    drive: Drive, text: str, good: str, bad: str, why: str
) -> None:
    pipeline = Pipeline("parts")
    pipeline.stream("texts", value=Text).select(x=text).to("out")
    driver = drive(pipeline)
    for value in (good, bad):
        driver.pipe("texts", {"s": value}, "k", timestamp=1)
    assert len(driver.output("out")) == 1
    (letter,) = driver.dead_letters()
    assert letter.headers["sluice.detail"].startswith(why)
