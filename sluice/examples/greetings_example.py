"""Sample greetings in two languages, and the expected results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from random import Random

from sluice.examples.example import Example, Results, Sample, json_bytes

_ENGLISH = (
    "Good Morning",
    "Good Night",
    "  How are   You ",
    "Hi",
    "Hello",
    "Transient Greeting",
    "See you Bob",
)
_SPANISH = ("¡Buenos Días!", "Buenas Noches", "¿Qué tal va?", "Hola")
_INVALID = b'{"message": 1}'
_BAD_EVERY = 50


def samples(count: int, seed: int, start_ms: int) -> Iterator[Sample]:
    """Yield one greeting per second: two thirds are English; one third is JSON with a time, the rest is plain text."""
    random = Random(seed)
    for number in range(count):
        time_ms = start_ms + 1_000 * number
        topic = "greetings" if random.random() < 2 / 3 else "greetings_spanish"
        text = random.choice(_ENGLISH if topic == "greetings" else _SPANISH)
        value = text.encode()
        if random.random() < 1 / 3:
            sent = datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S.060293")
            value = json_bytes({"message": text, "timeStamp": sent})
        if number % _BAD_EVERY == _BAD_EVERY - 1:
            value = _INVALID
        yield Sample(topic, f"g{random.randrange(5)}", value, time_ms)


def expected(records: Iterable[Sample]) -> Results:
    """Return the greetings in capitals, their words, and the letters of their short words."""
    results = Results()
    for record in records:
        text = (record.value or b"").decode()
        sent = None
        if text.startswith("{"):
            greeting = json.loads(text)
            if type(greeting["message"]) is not str:
                results.dead_letters["contract"] += 1
                continue
            text, sent = greeting["message"], greeting["timeStamp"]
        # The pipeline filters the texts before it trims them.
        if len(text) <= 5 or text.startswith("Transient "):
            continue
        text, key = text.strip(), record.key or ""
        capitals = text.upper() if sent is None else {"message": text.upper(), "timeStamp": sent}
        results.write("greetings_uppercase", key.upper(), capitals)
        for word in text.split():
            results.write("greetings_words", key, word)
            for letter in word if len(word) <= 3 else "":
                results.write("greetings_letters", key.upper(), letter)
    return results


EXAMPLE = Example(
    name="greetings",
    topics={"greetings": 2, "greetings_spanish": 2},
    outputs={"greetings_uppercase": 2, "greetings_words": 2, "greetings_letters": 2},
    count=500,
    samples=samples,
    expected=expected,
    paths=(
        "/sluice/v1/pipelines/greetings/snapshots?limit=1",
        "/sluice/v1/pipelines/greetings/topology?format=text",
    ),
)
