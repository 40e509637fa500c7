"""Sample words and letters, and the expected tables, aggregates and joins."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, NamedTuple

from sluice.examples.example import Example, Results, Sample

_LETTERS = "ABCDEFGH"
_WORDS = (
    "Apple",
    "Bus",
    "C3PO",
    "Ant",
    "Baby",
    "Xy",
    "Alpha",
    "Cat",
    "Dog",
    "Easel",
    "42nd",
    "Ham",
)
_STEP_MS, _NEAR_MS = 700, 10_000
_PAUSE_MS = 60_000
Pair = dict[str, str | None]


class _Text(NamedTuple):
    """A word, or a description, of a letter."""

    letter: str
    text: str
    time_ms: int


def samples(count: int, seed: int, start_ms: int) -> Iterator[Sample]:
    """Yield words, letters with a word, and letters with a description, a record every 0.7 s.

    A minute later, every letter gets a final description and word, so that no earlier record still
    waits for a match.
    """
    random = Random(seed)
    time_ms = start_ms
    for _ in range(max(count - 2 * len(_LETTERS), 0)):
        time_ms += _STEP_MS
        luck, letter, word = random.random(), random.choice(_LETTERS), random.choice(_WORDS)
        if luck < 0.4:
            is_deleted = random.random() < 0.1
            value = None if is_deleted else word.encode()
            yield Sample("words", f"w{random.randrange(6)}", value, time_ms)
        elif luck < 0.8:
            yield Sample("alphabet", letter, word.encode(), time_ms)
        else:
            is_deleted = random.random() < 0.2
            value = None if is_deleted else f"the letter {letter}, as of {time_ms}".encode()
            yield Sample("alphabet_descriptions", letter, value, time_ms)
    time_ms += _PAUSE_MS
    for letter in _LETTERS:
        time_ms += 1
        yield Sample("alphabet_descriptions", letter, f"the letter {letter}".encode(), time_ms)
    for letter in _LETTERS:
        time_ms += 1
        yield Sample("alphabet", letter, b"Last", time_ms)


def expected(records: Iterable[Sample]) -> Results:
    """Return all tables, aggregates and joins of the pipeline."""
    results, latest = Results(), dict[str, str]()
    counts, lengths = Counter[str](), Counter[str]()
    joined, letters = dict[str, str](), dict[str, dict[str, Any]]()
    descriptions, newest = dict[str, str](), dict[str, str]()
    spoken: list[_Text] = []
    described: list[_Text] = []
    for topic, key, value, time_ms in records:
        assert key is not None
        text = None if value is None else value.decode()
        if topic == "words":
            _put(latest, key, text)
        elif topic == "alphabet_descriptions":
            _put(descriptions, key, text)
            if text is not None:
                described.append(_Text(key, text, time_ms))
        elif text is not None:
            counts[key] += 1
            lengths[str(len(text))] += 1
            joined[key] = f"{joined[key]}-{text}" if key in joined else text
            letter = letters.setdefault(key, {"key": key, "valueList": [], "runningCount": 0})
            letter["valueList"] = sorted({*letter["valueList"], text})
            letter["runningCount"] += 1
            newest[key] = text
            spoken.append(_Text(key, text, time_ms))
            # A join of a stream with a table reads the row that the table has at the time of the
            # stream's record. A later description does not change the result.
            description = descriptions.get(key)
            results.write("words_with_description_left", key, _pair(text, description))
            if description is not None:
                results.write("words_with_description_inner", key, _pair(text, description))
    clean: dict[str, str] = {}
    for key, word in latest.items():
        if re.fullmatch("[A-Za-z]{3,}", word):
            clean[key] = word
    results.stores = {
        "words_latest": latest,
        "words_clean": clean,
        "letters_count": dict(counts),
        "lengths_count": dict(lengths),
        "letters_joined": joined,
        "letters": letters,
        "descriptions": descriptions,
        "newest_word": newest,
    }
    results.tables["words_clean"] = dict(clean)
    _join_tables(results, newest, descriptions)
    _join_near(results, spoken, described)
    return results


def _join_tables(
    results: Results,
    newest: dict[str, str],
    descriptions: dict[str, str],
) -> None:
    """Add the joins of two tables: the newest words, and the descriptions."""
    joined_keys = {
        "inner": newest.keys() & descriptions.keys(),
        "left": {*newest},
        "outer": newest.keys() | descriptions.keys(),
    }
    for how, keys in joined_keys.items():
        table: dict[str, Pair] = {}
        for key in keys:
            table[key] = _pair(newest.get(key), descriptions.get(key))
        results.tables[f"letters_with_description_{how}"] = table


def _join_near(
    results: Results,
    spoken: list[_Text],
    described: list[_Text],
) -> None:
    """Add pairs of words and descriptions at most ten seconds apart, and those without a match."""
    matched: set[_Text] = set()
    near = "words_near_description"
    for word in spoken:
        for description in described:
            is_near = abs(word.time_ms - description.time_ms) <= _NEAR_MS
            if word.letter == description.letter and is_near:
                matched |= {word, description}
                pair = _pair(word.text, description.text)
                for how in ("inner", "left", "outer"):
                    results.write(f"{near}_{how}", word.letter, pair)
    # The last records come a minute later, so every record without a match has waited long enough
    # to be joined with null.
    for word in spoken:
        if word not in matched:
            for how in ("left", "outer"):
                results.write(f"{near}_{how}", word.letter, _pair(word.text, None))
    for description in described:
        if description not in matched:
            pair = _pair(None, description.text)
            results.write(f"{near}_outer", description.letter, pair)


def _put(table: dict[str, str], key: str, value: str | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _pair(left: str | None, right: str | None) -> Pair:
    return {"left": left, "right": right}


def _with_sorted_sets(value: Any) -> Any:
    if isinstance(value, dict) and "valueList" in value:
        return value | {"valueList": sorted(value["valueList"])}
    return value


_OUTPUTS = (
    "words_clean",
    "words_with_description_inner",
    "words_with_description_left",
    "words_with_global_description_inner",
    "words_with_global_description_left",
    "alphabet_with_words",
    "letters_with_description_inner",
    "letters_with_description_left",
    "letters_with_description_outer",
    "words_near_description_inner",
    "words_near_description_left",
    "words_near_description_outer",
)


EXAMPLE = Example(
    name="words",
    topics={"words": 2, "alphabet": 3, "alphabet_descriptions": 2},
    outputs=dict.fromkeys(_OUTPUTS, 2),
    count=500,
    samples=samples,
    expected=expected,
    paths=(
        "/sluice/v1/stores/letters_count/keys/A",
        "/sluice/v1/stores/words_clean",
        "/sluice/v1/stores/letters/keys/B",
    ),
    normal=_with_sorted_sets,
)
