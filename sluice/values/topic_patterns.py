"""Patterns in lists of topics. A pattern is a text that begins with `^`; no topic's name does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_SIGN = "^"
_INTERNAL = "__"
"""The beginning of the names of Kafka's own topics, such as `__consumer_offsets`."""


def pattern_text(pattern: re.Pattern[str]) -> str:
    """Return the text by which a list of topics represents a pattern."""
    return _SIGN + pattern.pattern


def is_pattern(topic: str) -> bool:
    """Return whether an element of a list of topics is a pattern."""
    return topic.startswith(_SIGN)


def matches(pattern: str, topic: str) -> bool:
    """Return whether a pattern matches the whole name of a topic."""
    return (
        not topic.startswith((_SIGN, _INTERNAL)) and _compiled(pattern).fullmatch(topic) is not None
    )


def named_or_matching(topics: Iterable[str], existing: Iterable[str]) -> list[str]:
    """Return a list's names and the existing topics that its patterns match, each once."""
    names: list[str] = []
    matched: list[str] = []
    for topic in topics:
        if is_pattern(topic):
            matched += sorted(name for name in existing if matches(topic, name))
        else:
            names.append(topic)
    return [*dict.fromkeys([*names, *matched])]


def declared_topics(topics: Iterable[str]) -> list[str]:
    """Return an author's patterns and names: the list without topics that a pattern matches."""
    topics = [*topics]
    patterns = list(filter(is_pattern, topics))
    declared: list[str] = []
    for topic in topics:
        if not any(matches(pattern, topic) for pattern in patterns):
            declared.append(topic)
    return declared


@lru_cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.removeprefix(_SIGN))
