"""Every Python block of the documentation is valid Python, and every pipeline file that a page shows can be planned."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.plan import plan
from sluice.topology.loading.pipeline_import import load_file
from tests.docs.pages import ROOT, files, read, steps

PAGES = [
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "```py" in path.read_text() and path.name != "reference.md"  # which has signatures
]


def pipelines() -> Iterator[tuple[str, str]]:
    """The page and the path of each pipeline file that a page shows."""
    for page in PAGES:
        for path, content in files(read(page)).items():
            if "pipeline = Pipeline(" in content:
                yield page, path


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_are_python(page: str) -> None:
    text = read(page)
    for content in files(text).values():
        ast.parse(content)
    for language in ("python", "py"):
        for step in steps(text, language):
            ast.parse(step.commands)


@pytest.mark.parametrize(("page", "path"), list(pipelines()))
def test_the_pipeline_of_a_page_can_be_planned(page: str, path: str, tmp_path: Path) -> None:
    file = tmp_path / Path(path).name
    file.write_text(files(read(page))[path])
    assert plan(load_file(file)).job.streams
