"""The page "What Sluice must do" has every row of the mission; the files and tests that a row names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, read

PAGE = "docs/mission.md"
ROWS = {
    "M1",
    "M2",
    "M3",
    "M4",
    "M5",
    "M6",
    "M7",
    "M8",
    "M8b",
    "M9",
    "M10",
    "M11",
    "M12",
    "M13",
    "M14",
}
_ROW = re.compile(r"^\| (M\d+b?) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")

found = {number: (files, tests) for number, _, files, tests in _ROW.findall(read(PAGE))}


def test_the_page_has_every_row_once() -> None:
    assert sorted(number for number, *_ in _ROW.findall(read(PAGE))) == sorted(ROWS)


@pytest.mark.parametrize("number", sorted(ROWS))
def test_the_files_of_a_row_exist_and_its_tests_are_tests(number: str) -> None:
    files, tests = (targets(cell) for cell in found[number])
    assert files
    assert all(file.is_file() and "tests" not in file.relative_to(ROOT).parts for file in files)
    assert tests
    for test in tests:
        assert test.relative_to(ROOT).parts[0] == "tests"
        assert re.search(r"^def test_", test.read_text(), re.MULTILINE), f"{test} has no test"


def targets(cell: str) -> list[Path]:
    """The files that a cell links to; the text of a link is the file's name."""
    links = _LINK.findall(cell)
    assert all(Path(link).name == name for name, link in links)
    return [(ROOT / PAGE).parent.joinpath(link).resolve() for _, link in links]
