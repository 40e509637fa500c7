"""Dead letters of ordered steps have their records' headers, and a re-driven record that fails again its history."""

from __future__ import annotations

from typing import Any

from sluice import Pipeline
from sluice.engine.read.reread_headers import headers_at
from sluice.kafka.dead_letter_topic import DeadLetterFilter, find_dead_letters
from sluice.kafka.redrive import redrive
from tests.engine.conftest import Running, Start
from tests.engine.shop import Amount, Names


def strict(_so_far: Amount, amount: Amount) -> Amount:
    """The newest amount, unless it is negative."""
    if amount.n < 0:
        raise ValueError(f"{amount.n} is negative")
    return amount


def newest(names: Names) -> Pipeline:
    pipeline = names.pipeline(workers=1, max_failures=100)
    amounts = pipeline.stream(names("amounts"), value=Amount)
    amounts.group_by_key().reduce(strict, store="newest")
    return pipeline


def letters(running: Running) -> list[list[Any]]:
    """The headers of every dead letter."""
    return [[*(letter.headers() or [])] for letter in running.dead_letters()]


def test_a_record_that_fails_again_after_a_re_drive_has_its_headers_and_its_history(
    start: Start,
) -> None:
    running = start(newest, amounts=2)
    amounts, kafka = running.names("amounts"), {"bootstrap.servers": running.bootstrap}
    trace = [
        ("trace", b"\x01\xff"),
        ("empty", None),
        ("trace", b"second"),
        ("sluice.reason", b"forged"),
    ]
    for partition in range(2):
        running.send("amounts", b'{"n":1}', partition=partition)
        running.send("amounts", b'{"n":-1}', partition=partition, headers=trace)
        running.send("amounts", b'{"n":-2}', partition=partition)
    running.send("amounts", b"not JSON", partition=0, headers=trace)
    running.run()
    found = letters(running)
    forged = ("sluice.original.sluice.reason", b"forged")
    traced = [headers for headers in found if headers[:4] == [*trace[:3], forged]]
    assert [len(headers) for headers in (found, traced)] == [5, 3]
    assert [dict(headers)["sluice.reason"] for headers in traced].count(b"forged") == 0
    assert {name for headers in found for name, _ in headers if not name.startswith("sluice.")} == {
        "trace",
        "empty",
    }

    chosen = DeadLetterFilter(reason="processing", partition=1)
    assert redrive(kafka, running.pipeline.name, [amounts], chosen).redriven == 2
    assert running.run() == 2
    again = find_dead_letters(kafka, running.pipeline.name, chosen, 10).letters[:2]
    assert [[failure["reason"] for failure in letter.history] for letter in again] == [
        ["processing"]
    ] * 2
    assert sorted(("trace", b"\x01\xff") in letter.headers for letter in again) == [False, True]
    # The next re-drive continues the history.
    assert redrive(kafka, running.pipeline.name, [amounts], chosen).redriven == 2
    assert running.run() == 2
    matches = find_dead_letters(kafka, running.pipeline.name, chosen, 2)
    assert [len(letter.history) for letter in matches.letters] == [2, 2]


def test_headers_are_read_from_any_places(start: Start) -> None:
    running = start(newest, amounts=2)
    for number in range(1_500):
        running.producer.produce(
            running.names("amounts"),
            b"{}",
            partition=0,
            headers=[("n", str(number))] if number % 2 else None,
        )
    running.send("amounts", b"{}", partition=1, headers=[("n", "other")])
    running.producer.flush(60)
    amounts = running.names("amounts")
    wanted = [
        (amounts, 0, 1_499),
        (amounts, 0, 3),
        (amounts, 0, 2),
        (amounts, 1, 0),
        (amounts, 0, 5),
    ]
    found = headers_at({"bootstrap.servers": running.bootstrap}, wanted)
    expected = {(0, 3): b"3", (0, 5): b"5", (0, 1_499): b"1499", (1, 0): b"other"}
    assert {place[1:]: headers for place, headers in found.items()} == {
        place: [{"key": "n", "value": text}] for place, text in expected.items()
    }
