"""Every fault and attack has a marked test; the pages of faults and of security list its file."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache

import pytest

from tests.docs.pages import ROOT, read

FAULTS = {f"F{number}" for number in (*range(1, 39), *range(40, 48), *range(50, 58))}
FAULTS |= {f"B{number}" for number in range(1, 7)}
ATTACKS = {f"S{number}" for number in range(1, 12)}


@cache
def marked(kind: str) -> dict[str, set[str]]:
    """Number of a fault or attack → files with tests for it."""
    files_by_number: dict[str, set[str]] = defaultdict(set)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text()
        for node in ast.parse(text).body if f"mark.{kind}(" in text else ():
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for marker in node.decorator_list:
                    if (
                        isinstance(marker, ast.Call)
                        and ast.unparse(marker.func) == f"pytest.mark.{kind}"
                    ):
                        files_by_number[ast.literal_eval(marker.args[0])].add(
                            str(file.relative_to(ROOT))
                        )
    return files_by_number


def test_every_fault_and_every_attack_has_a_test() -> None:
    assert set(marked("fault")) == FAULTS
    assert set(marked("attack")) == ATTACKS


def test_the_security_page_lists_the_files_of_each_attack() -> None:
    rows = re.findall(r"^\| (S\d+) \|.*\| ([^|]+) \|$", read("docs/security.md"), re.MULTILINE)
    assert {number: set(re.findall(r"`([^`]+)`", files)) for number, files in rows} == dict(
        marked("attack")
    )


@pytest.mark.parametrize("number", sorted(FAULTS))
def test_the_page_of_faults_lists_the_files_of_each_fault(number: str) -> None:
    rows = re.findall(
        r"^\| ([FB]\d[^|]*) \|.*\| ([^|]+) \|$", read("tests/faults/README.md"), re.MULTILINE
    )
    named = {
        file
        for numbers, files in rows
        if number in _numbers(numbers)
        for file in re.findall(r"`([^`]+)`", files)
    }
    assert named
    assert all((ROOT / file).exists() for file in named)
    assert marked("fault")[number] <= {
        re.sub(r"kills\.py$", "test_drivers.py", file) for file in named
    }


def _numbers(text: str) -> set[str]:
    """The numbers in a text such as `F2, F11 to F13`."""
    results = set()
    for kind, first, last in re.findall(r"([FB])(\d+)(?: to [FB](\d+))?", text):
        results |= {f"{kind}{number}" for number in range(int(first), int(last or first) + 1)}
    return results
