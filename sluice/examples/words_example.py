"""Sample words and letters, and the expected tables, aggregates and joins."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

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


def samples(count: int, seed: int, start_ms: int) -> Iterator[Sample]:
    """Words, letters with a word, and letters with a description, one record every 0.7 s.

    A minute later, every letter gets a final description and word, so that no earlier record still
    waits for a match.
    """
    random = Random(seed)
    time_ms = start_ms
    for _ in range(max(count - 2 * len(_LETTERS), 0)):
        time_ms += _STEP_MS
        luck, letter, word = random.random(), random.choice(_LETTERS), random.choice(_WORDS)
        if luck < 0.4:
            value = None if random.random() < 0.1 else word.encode()
            yield Sample("words", f"w{random.randrange(6)}", value, time_ms)
        elif luck < 0.8:
            yield Sample("alphabet", letter, word.encode(), time_ms)
        else:
            text = (
                None if random.random() < 0.2 else f"the letter {letter}, as of {time_ms}".encode()
            )
            yield Sample("alphabet_descriptions", letter, text, time_ms)
    time_ms += _PAUSE_MS
    for letter in _LETTERS:
        yield Sample(
            "alphabet_descriptions", letter, f"the letter {letter}".encode(), time_ms := time_ms + 1
        )
    for letter in _LETTERS:
        yield Sample("alphabet", letter, b"Last", time_ms := time_ms + 1)


def expected(records: Iterable[Sample]) -> Results:
    """All tables, aggregates and joins of the pipeline."""
    results, latest = Results(), dict[str, str]()
    counts, lengths = Counter[str](), Counter[str]()
    joined, letters = dict[str, str](), dict[str, dict[str, Any]]()
    descriptions, newest = dict[str, str](), dict[str, str]()
    spoken: list[tuple[str, str, int]] = []
    described: list[tuple[str, str, int]] = []
    for topic, key, value, time_ms in records:
        assert key is not None
        text = None if value is None else value.decode()
        if topic == "words":
            _put(latest, key, text)
        elif topic == "alphabet_descriptions":
            _put(descriptions, key, text)
            if text is not None:
                described.append((key, text, time_ms))
        elif text is not None:
            counts[key] += 1
            lengths[str(len(text))] += 1
            joined[key] = f"{joined[key]}-{text}" if key in joined else text
            letter = letters.setdefault(key, {"key": key, "valueList": [], "runningCount": 0})
            letter["valueList"] = sorted({*letter["valueList"], text})
            letter["runningCount"] += 1
            newest[key] = text
            spoken.append((key, text, time_ms))
            # A join of a stream with a table reads the row that the table has at the time of the
            # stream's record. A later description does not change the result.
            description = descriptions.get(key)
            results.write("words_with_description_left", key, _pair(text, description))
            if description is not None:
                results.write("words_with_description_inner", key, _pair(text, description))
    clean = {key: word for key, word in latest.items() if re.fullmatch("[A-Za-z]{3,}", word)}
    results.stores = {
        "words_latest": latest, "words_clean": clean, "letters_count": dict(counts), "lengths_count": dict(lengths),
        "letters_joined": joined, "letters": letters, "descriptions": descriptions, "newest_word": newest,
    }  # fmt: skip
    results.tables["words_clean"] = dict(clean)
    for how, keys in (
        ("inner", newest.keys() & descriptions.keys()), ("left", newest.keys()),
        ("outer", newest.keys() | descriptions.keys()),
    ):  # fmt: skip
        pairs = {key: _pair(newest.get(key), descriptions.get(key)) for key in keys}
        results.tables[f"letters_with_description_{how}"] = pairs
    _join_near(results, spoken, described)
    return results


def _join_near(
    results: Results,
    spoken: list[tuple[str, str, int]],
    described: list[tuple[str, str, int]],
) -> None:
    """Add pairs of words and descriptions at most ten seconds apart, and words and descriptions without a match."""
    matched: set[tuple[str, str, int]] = set()
    near = "words_near_description"
    for word in spoken:
        for description in described:
            if word[0] == description[0] and abs(word[2] - description[2]) <= _NEAR_MS:
                matched |= {word, description}
                for how in ("inner", "left", "outer"):
                    results.write(f"{near}_{how}", word[0], _pair(word[1], description[1]))
    for word in spoken:
        # The last records come a minute later, so every record without a match has waited long
        # enough to be joined with null.
        for how in ("left", "outer") if word not in matched else ():
            results.write(f"{near}_{how}", word[0], _pair(word[1], None))
    for description in described:
        if description not in matched:
            results.write(f"{near}_outer", description[0], _pair(None, description[1]))


def _put(table: dict[str, str], key: str, value: str | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _pair(left: str | None, right: str | None) -> Pair:
    return {"left": left, "right": right}


def _with_sorted_sets(value: Any) -> Any:
    has_set = isinstance(value, dict) and "valueList" in value
    return value | {"valueList": sorted(value["valueList"])} if has_set else value


EXAMPLE = Example(
    name="words",
    topics={"words": 2, "alphabet": 3, "alphabet_descriptions": 2},
    outputs=dict.fromkeys(
        (
            "words_clean",
            *(f"words_with_description_{how}" for how in ("inner", "left")),
            *(f"words_with_global_description_{how}" for how in ("inner", "left")),
            "alphabet_with_words",
            *(f"letters_with_description_{how}" for how in ("inner", "left", "outer")),
            *(f"words_near_description_{how}" for how in ("inner", "left", "outer")),
        ),
        2,
    ),
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
