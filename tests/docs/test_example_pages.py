"""Every example has a page with its drawing, its producer, its tests, its DAG, and queries with their answers."""

from __future__ import annotations

import re

import pytest

from sluice.examples import NAMES
from tests.docs.pages import read

NEEDED = (
    r"!\[[^\]]+\]\(\.\./images/{name}\.svg\)",
    r"^sluice produce {name}\b",
    r"^\| tests with `TopologyTestDriver` \| .*tests/pipelines/test_{name}\.py\)",
    r"^\| test on a real broker.* \| .*\(\.\./\.\./tests/",
    r"^\| DAG \| `{name}`, ",
    r"^`GET /[^`]+`",
    r"^```json$",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("needed", NEEDED)
def test_an_examples_page_has_every_part(name: str, needed: str) -> None:
    assert re.search(needed.format(name=name), read(f"docs/examples/{name}.md"), re.MULTILINE)
    assert f"]({name}.md)" in read("docs/examples/README.md")
