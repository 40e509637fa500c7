"""The page's scripts, styles and templates can be read, and compared line by line.

`npx prettier --print-width 100` formats them. The check itself needs no Node.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.api.page.page import STATIC

pytestmark = pytest.mark.unit

LONGEST = 100
EXAMPLES = Path(__file__).parents[3] / "spark_jobs"
FILES = [
    *STATIC.glob("*.js"),
    *STATIC.glob("*.css"),
    *(STATIC.parent / "templates").glob("*.html"),
    *EXAMPLES.glob("*.js"),
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_lines_have_at_most_a_hundred_characters(file: Path) -> None:
    long: list[str] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if len(line) > LONGEST:
            long.append(f"{file.name}:{number}: {line}")
    assert long == []
