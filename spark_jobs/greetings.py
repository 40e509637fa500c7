"""Greetings in two languages: merged, cleaned, converted to capitals, and split into words and letters.

A greeting is plain text, or JSON with the time at which it was sent. It is written in the same
form.
"""

import logging
from datetime import datetime
from typing import Any

import msgspec

from sluice import Pipeline, Serde

log = logging.getLogger("greetings")


class Greeting(msgspec.Struct):
    """A greeting. Plain text has no time."""

    message: str
    timeStamp: datetime | None = None


def decode(data: bytes) -> Greeting:
    if data.startswith(b"{"):
        return msgspec.json.decode(data, type=Greeting)
    return Greeting(data.decode())


def encode(greeting: dict[str, Any]) -> bytes:
    """Write JSON, without a time zone as in the input, if the greeting has a time; otherwise plain text."""
    if greeting["timeStamp"] is None:
        return str(greeting["message"]).encode()
    return msgspec.json.encode(greeting | {"timeStamp": greeting["timeStamp"].removesuffix("Z")})


def note(key: str | None, greeting: Greeting) -> None:
    log.debug("%s: %s", key, greeting.message)


def letters(key: str | None, word: str) -> list[tuple[str | None, str]]:
    """The letters of a word, keyed by the word's key in capitals."""
    return [(key and key.upper(), letter) for letter in word]


GREETING = Serde(Greeting, decode=decode, encode=encode)

pipeline = Pipeline("greetings", workers=1)
english = pipeline.stream("greetings", value=GREETING)
spanish = pipeline.stream("greetings_spanish", value=GREETING)

greetings = (
    english.merge(spanish)
    .peek(note)
    .filter("length(message) > 5")
    .filter_not("message LIKE 'Transient %'")
    .select("timeStamp", message="trim(message)")
)
greetings.select(_key="upper(_key)", message="upper(message)", timeStamp="timeStamp").to(
    "greetings_uppercase", value=GREETING
)

words = greetings.flat_map_values("split(message, ' +')")
words.to("greetings_words", value=str)
words.filter("length(value) <= 3").flat_map(letters, returns=str).to("greetings_letters", value=str)
