"""The reference, the drawings and the licences are up to date."""

from __future__ import annotations

import re

from docs import make_licences, make_reference
from sluice import settings
from tests.docs.pages import read

ADVICE = "run `make docs`, and commit what it writes"


def test_the_reference_is_up_to_date() -> None:
    assert read("docs/reference.md") == make_reference.page(), ADVICE


def test_the_reference_has_a_row_for_each_parameter() -> None:
    page = read("docs/reference.md")
    assert "<class" not in page
    assert "<function" not in page
    rows = re.findall(r"^\| `([*\w]+)` \| `(.+)` \| (.*) \|$", page, re.MULTILINE)
    assert ("max_failures", "float", "`0.5`") in rows
    assert ("topic", "str | OutputTable".replace("|", r"\|"), "required") in rows
    choices = [kind for name, kind, _ in rows if name == "emit"]
    assert r'"every" \| "latest"' in choices


def test_no_line_of_the_reference_must_be_scrolled_through() -> None:
    bullets = [line for line in read("docs/reference.md").splitlines() if line.startswith("- ")]
    assert [line for line in bullets if len(line) > 300] == []


def test_the_drawings_are_up_to_date() -> None:
    drawings = make_reference.drawings()
    assert {name: read(f"docs/images/{name}") for name in drawings} == drawings, ADVICE


def test_the_licences_are_up_to_date() -> None:
    assert read("docs/licences.md") == make_licences.page(), ADVICE


def test_every_public_object_has_a_docstring() -> None:
    for described in (one for objects in make_reference.PUBLIC.values() for one in objects):
        assert (described.__doc__ or "").strip().endswith("."), described


def test_the_settings_page_matches_the_code() -> None:
    table = [line for line in (settings.__doc__ or "").splitlines() if line.startswith("| SLUICE_")]
    told = read("docs/how-to/settings.md").replace("`", "")
    assert table
    for line in table:
        assert line.rstrip(" |") in told
