"""A dead letter's headers: the rejected record's headers, then Sluice's, which nobody can forge.

This module has their names; `engine/batch/dead_letters.py` writes them.

Names of Sluice's headers start with `sluice.`. A header of the record with such a name is written
as `sluice.original.NAME`. Sluice's headers come last, and `sluice.reason` is the first of them.

After them, a dead letter has the headers that Kafka Streams gives its dead letters (KIP-1034), for
programs that read these. They only repeat Sluice's headers, so Sluice itself ignores them, and
omits them if the dead letter would be too large. The rejected record may have headers of these
names, too, for example if Kafka Streams has rejected it before. As in Kafka Streams, the record's
headers come first, and stay.
"""

from __future__ import annotations

import builtins
import re

from sluice.values.record_places import Place

PREFIX = "sluice."
FIRST = "sluice.reason"
_ORIGINAL = "sluice.original."
STREAMS_PLACE = (
    "__streams.errors.topic",
    "__streams.errors.partition",
    "__streams.errors.offset",
)
STREAMS_HEADERS = frozenset(
    {
        "__streams.errors.exception",
        "__streams.errors.message",
        "__streams.errors.stacktrace",
        *STREAMS_PLACE,
    }
)
"""The names of the headers of Kafka Streams' dead letters. `STREAMS_PLACE` are the headers with the
record's position."""
_RAISED = re.compile(r"(?P<exception>[A-Za-z_]\w*)(?:: (?P<message>.*))?", re.DOTALL)
_NOT_RAISED = "sluice.errors.RecordFailed"
"""The class of the error with which `on_error="fail"` ends a run."""


def escaped(name: str) -> str:
    """Return the name of a header of the rejected record in the dead letter."""
    if name.startswith(PREFIX):
        return f"{_ORIGINAL}{name}"
    return name


def original(name: str) -> str:
    """Return the name that a dead letter's header had in the rejected record.

    This is the inverse of `escaped`.
    """
    return name.removeprefix(_ORIGINAL)


def streams_headers(
    detail: str, place: Place | None, step: str = "", at: str = ""
) -> list[tuple[str, str | None]]:
    """Return the headers of Kafka Streams' dead letters, as names and texts.

    `detail` is the text of `sluice.detail`. If the error belongs to no record of a topic, the topic
    is null, and partition and offset are -1, as in Kafka Streams. The stack trace has two lines:
    the error, and the place of the `step` in the author's file (`at`).
    """
    exception, message = _exception(detail)
    trace = exception
    if message:
        trace = f"{exception}: {message}"
    if step or at:
        trace += "\n\tat " + " ".join(part for part in (step, at and f"({at})") if part)
    topic, partition, offset = place or (None, -1, -1)
    place_texts = (topic, str(partition), str(offset))
    return [
        ("__streams.errors.exception", exception),
        ("__streams.errors.message", message),
        ("__streams.errors.stacktrace", trace),
        *zip(STREAMS_PLACE, place_texts, strict=True),
    ]


def _exception(detail: str) -> tuple[str, str | None]:
    """Return the class of the exception that an author's function raised, and its message.

    For a record that was rejected for another reason, return the class of the error that ends a run
    with `on_error="fail"`.
    """
    raised = _RAISED.fullmatch(detail)
    if raised is None:
        return _NOT_RAISED, detail
    name = raised["exception"]
    of_python = getattr(builtins, name, None)
    is_exception = isinstance(of_python, type) and issubclass(of_python, BaseException)
    if is_exception or name.endswith(("Error", "Exception")):
        return name, raised["message"]
    return _NOT_RAISED, detail
