"""Lines of `sluice topics write` and `sluice topics read` with `--key-separator`."""

from __future__ import annotations

import pytest

from sluice.commands.topics_commands import line_of, record_of


@pytest.mark.parametrize(
    ("line", "separator", "key", "value"),
    [
        ("A:Apple", "", None, b"A:Apple"),
        ("A:Apple", ":", "A", b"Apple"),
        ("A::b", ":", "A", b":b"),
        ("A:", ":", "A", b""),
        ("A", ":", "A", None),
        (":Apple", ":", "", b"Apple"),
    ],
)
def test_a_line_is_a_record(
    line: str, separator: str, key: str | None, value: bytes | None
) -> None:
    assert record_of(line, separator) == (key, value, 0)
    assert line_of(None if key is None else key.encode(), value, separator) == line


def test_records_that_are_not_text_can_be_printed() -> None:
    assert line_of(b"\xff", b"\xfe", " -> ") == "\ufffd -> \ufffd"
    assert line_of(None, None, "") == ""
