"""Turns the entries of stores into entries of answers."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from sluice import answers
from sluice.state.model import NO_WINDOW
from sluice.state.queries.entries import Entry
from sluice.values.headers import Headers
from sluice.values.utc_times import utc_datetime


def answered_entry(entry: Entry, value: Any) -> answers.Entry:
    """Return the entry as it appears in an answer.

    `value` is its value, or the JSON of its value.
    """
    start = end = None
    if entry.window_start != NO_WINDOW:
        start, end = utc_datetime(entry.window_start), utc_datetime(entry.window_end)
    if not entry.keeps_headers:
        return answers.Entry(entry.key, value, start, end)
    by_name = {name: answered_headers(each) for name, each in entry.headers_by_name.items()}
    return answers.Entry(entry.key, value, start, end, answered_headers(entry.headers), by_name)


def answered_headers(headers: Headers) -> list[answers.Header]:
    """Return the headers of an entry. Bytes that are not UTF-8 are also given in base64."""
    answered: list[answers.Header] = []
    for name, value in headers:
        if value is None:
            answered.append(answers.Header(name, None))
            continue
        try:
            answered.append(answers.Header(name, value.decode()))
        except UnicodeDecodeError:
            text = value.decode(errors="replace")
            answered.append(answers.Header(name, text, b64encode(value).decode()))
    return answered
