"""Formats counts with their nouns."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """The number with the noun in the singular or plural: `1 worker`, `2 workers`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
