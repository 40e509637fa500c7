"""Headers of dead letters: the record's own come first, under names that are not Sluice's, and never exceed a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from sluice.engine.batch.dead_letters import (
    DEAD_LETTER,
    escape_headers,
    iso_time,
    shorten_dead_letters,
)
from sluice.engine.batch.record_headers import header
from sluice.kafka.dead_letter_topic import DeadLetter, DeadLetterFilter
from sluice.kafka.redrive import _milliseconds
from sluice.kafka.topics import Headers, headers_of, headers_of_each, text_headers
from sluice.values.dead_letter_headers import PREFIX, escaped, original, streams_headers
from tests.support.states import NOON

NAMES = st.one_of(
    st.text(),
    st.builds("".join, st.lists(st.sampled_from(["sluice.", "original.", "reason", "x", "."]))),
)

UNREADABLE = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


@given(NAMES)
def test_a_records_own_header_gets_a_name_that_sluice_does_not_use_and_gets_its_own_back(
    name: str,
) -> None:
    assert original(escaped(name)) == name
    assert not escaped(name).startswith(PREFIX) or escaped(name).startswith("sluice.original.")


@pytest.mark.parametrize(
    "timestamp", [1_670_230_527_123, 0, -1, -(10**15), 10**15, 9_223_372_036_854_775]
)
def test_a_re_driven_record_gets_its_own_timestamp(timestamp: int) -> None:
    """Also a timestamp before the year 1 or after the year 9999, which a producer can write by mistake."""
    assert _milliseconds(iso_time(timestamp)) == timestamp


def test_headers_with_names_that_are_no_text_are_shown_as_such() -> None:
    class Unreadable:
        """A message whose headers Kafka's client cannot decode."""

        def headers(self) -> None:
            raise SystemError from UNREADABLE

    message: Any = Unreadable()
    assert headers_of(message) == [("(unreadable)", b"names of headers are not UTF-8")]
    assert text_headers(message) == {"(unreadable)": "names of headers are not UTF-8"}


@dataclass
class _Message:
    """A message whose client returns these headers, or raises this error, once."""

    answers: list[Any]

    def headers(self) -> Any:
        (answer,), self.answers = self.answers, []
        if isinstance(answer, Exception):
            raise answer
        return answer


_PAIRS = st.lists(st.tuples(st.text(), st.none() | st.binary() | st.text()))
_ANSWERS: st.SearchStrategy[list[Any]] = st.lists(
    st.none() | _PAIRS | st.builds(dict, _PAIRS) | st.sampled_from([SystemError(), UNREADABLE])
)


@given(_ANSWERS)
def test_the_headers_of_many_records_are_those_of_each(answers: list[Any]) -> None:
    with patch("sluice.kafka.topics.Message", _Message):
        found = headers_of_each(cast(list[Message], [_Message([answer]) for answer in answers]))
    assert found == [headers_of(cast(Message, _Message([answer]))) for answer in answers]


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ([("trace", b"1"), ("trace", None)], [("trace", b"1"), ("trace", None)]),
        ([("", None)] * 100_000, [("", None)] * 10),
        ([("a", b"x" * 1_000), ("b", b"")], [("a", b"x" * 100)]),
        ([("é" * 100, b"")], [("é" * 50, b"")]),
    ],
    ids=["few", "many empty ones", "a large one", "a long name"],
)
def test_a_list_of_dead_letters_shows_the_first_bytes_of_their_headers(
    headers: Headers, shown: Headers
) -> None:
    letter = DeadLetter(0, 0, NOON, b"k" * 1_000, None, headers, {"sluice.reason": "contract"}, 0)
    short = letter.with_most(100)
    assert (short.headers, short.key, short.reason) == (shown, b"k" * 100, "contract")


@pytest.mark.parametrize(
    ("key", "value", "own", "left_out"),
    [
        (b"k", b"v", [], None),
        (b"k", b"v" * 2_000, [], "the value, of 2000 bytes"),
        (b"k", None, [("a", b"x" * 2_000)], "the headers, of 2011 bytes"),
        (b"k", b"v", [("a", None)] * 300, "the value, of 1 bytes and the headers, of 3300 bytes"),
        (b"k" * 2_000, b"v" * 2_000, [("a" * 2_000, None)],
         "the value, of 2000 bytes and the headers, of 2010 bytes and the key, of 2000 bytes"),
        (None, None, [], None),
    ],
)  # fmt: skip
def test_a_dead_letter_fits_its_topic_whatever_part_of_its_record_is_large(
    key: bytes | None,
    value: bytes | None,
    own: list[tuple[str, bytes | None]],
    left_out: str | None,
) -> None:
    headers = [
        *escape_headers([{"key": name, "value": text} for name, text in own]),
        header("sluice.reason", "x"),
    ]
    rows = [
        {"key": b"k", "value": b"v", "headers": headers[-1:]},
        {"key": key, "value": value, "headers": headers},
    ]
    table = pa.concat_tables(
        pa.Table.from_pylist([row], DEAD_LETTER) for row in rows
    )  # of several chunks
    small, letter = shorten_dead_letters(table, 1_000).to_pylist()
    assert small == rows[0]
    texts = {each["key"]: (each["value"] or b"").decode() for each in letter["headers"]}
    assert (texts["sluice.reason"], texts.get("sluice.left_out")) == ("x", left_out)
    if left_out is None:
        assert letter == rows[1]
    sizes = [len(letter["key"] or b""), len(letter["value"] or b""), sum(map(len, texts.values()))]
    assert sum(sizes) < 1_000


@dataclass
class _DeadLetterMessage:
    """A dead letter as Kafka's client returns it."""

    pairs: list[tuple[str, bytes | None]]

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self.pairs

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"


def encoded(pairs: list[tuple[str, str | None]]) -> list[tuple[str, bytes | None]]:
    return [(name, None if text is None else text.encode()) for name, text in pairs]


def test_the_headers_of_kafka_streams_are_no_headers_of_the_rejected_record() -> None:
    """The record keeps headers of these names: Kafka Streams has rejected it before, in another program."""
    earlier = encoded(streams_headers("ValueError: old", ("before", 1, 2)))
    of_streams = encoded(streams_headers("Expected `int`", ("orders", 3, 4)))
    pairs = [("trace", b"1"), *earlier, ("sluice.reason", b"contract"), *of_streams]
    message: Any = _DeadLetterMessage([*pairs, ("other", b"2")])
    letter = DeadLetter.of(message)
    assert letter.headers == [("trace", b"1"), *earlier, ("other", b"2")]
    assert letter.sluice_headers == {"sluice.reason": "contract"}


@pytest.mark.parametrize(
    ("detail", "exception", "message"),
    [
        ("ZeroDivisionError: division by zero", "ZeroDivisionError", "division by zero"),
        ("KeyError", "KeyError", None),
        ("ShopIsClosedError: a: b", "ShopIsClosedError", "a: b"),
        ("StopIteration", "StopIteration", None),
        ("DIVIDE_BY_ZERO in 1 / n", "sluice.errors.RecordFailed", "DIVIDE_BY_ZERO in 1 / n"),
        ("amount: too large", "sluice.errors.RecordFailed", "amount: too large"),
        ("print: no", "sluice.errors.RecordFailed", "print: no"),
        ("", "sluice.errors.RecordFailed", ""),
    ],
)
def test_a_dead_letter_names_the_exception_as_kafka_streams_does(
    detail: str, exception: str, message: str | None
) -> None:
    headers = dict(streams_headers(detail, ("orders", 0, 5), "filter-2", "shop.py:3"))
    error = f"{exception}: {message}" if message else exception
    assert headers == {
        "__streams.errors.exception": exception,
        "__streams.errors.message": message,
        "__streams.errors.stacktrace": f"{error}\n\tat filter-2 (shop.py:3)",
        "__streams.errors.topic": "orders",
        "__streams.errors.partition": "0",
        "__streams.errors.offset": "5",
    }


def test_an_error_of_no_record_has_no_place() -> None:
    headers = dict(streams_headers("ValueError", None))
    names = ("topic", "partition", "offset", "stacktrace")
    texts = [headers[f"__streams.errors.{name}"] for name in names]
    assert texts == [None, "-1", "-1", "ValueError"]


def test_a_large_dead_letter_first_loses_the_headers_of_kafka_streams() -> None:
    of_streams = [
        header(name, text or "") for name, text in streams_headers("x" * 300, ("orders", 0, 5))
    ]
    own = header("__streams.errors.topic", "before")
    of_sluice = [header("sluice.reason", "x"), header("sluice.detail", "x" * 300)]
    headers = [own, *of_sluice, *of_streams]
    row = {"key": b"k", "value": b"v" * 100, "headers": headers}
    table = pa.Table.from_pylist([row], DEAD_LETTER)
    assert shorten_dead_letters(table, 2_000).to_pylist() == [row]
    (short,) = shorten_dead_letters(table, 1_000).to_pylist()
    assert short == row | {"headers": [own, *of_sluice]}


@pytest.mark.parametrize(
    ("key", "received", "chosen", "matches"),
    [
        (b"a", "", "a", True),
        (b"a", "", "b", False),
        (b"a", "shop", "shop", True),
        (b"a", "shop", "a", True),
        (None, "", "a", False),
        (b"", "", "", True),
        (None, "", "", False),
        ("ü".encode(), "", "ü", True),
    ],
)
def test_dead_letters_are_found_by_the_key_of_the_record_or_of_the_step(
    key: bytes | None, received: str, chosen: str, matches: bool
) -> None:
    own = {f"{PREFIX}key": received} if received else {}
    letter = DeadLetter(0, 0, NOON, key, b"x", [], own, 1)
    assert DeadLetterFilter(key=chosen).matches(letter) is matches
    assert DeadLetterFilter().matches(letter)
