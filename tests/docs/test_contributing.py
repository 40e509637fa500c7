"""What CONTRIBUTING.md and the pages for contributors name exists; the picture of the packages is up to date."""

from __future__ import annotations

import re

import pytest

from docs import packages_picture
from tests.docs.pages import ROOT, read

_PATH = re.compile(r"`((?:sluice|tests|docs|spark_jobs|benchmarks|docker)/[\w./-]*\w\.\w+)`")
_NAME = re.compile(r"`([A-Za-z_]\w+)`")
_STEP = re.compile(r"^(?:\d\.|\|) (`.*?)(?=^(?:\d\.|\|) |\n\n)", re.MULTILINE | re.DOTALL)
_RECIPE = re.compile(r"^### (Add .+?)\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
_PLACEHOLDER = "NAME"


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "docs/how-it-works.md", "docs/how-to/debug.md"]
)
def test_files_that_a_page_names_exist(page: str) -> None:
    paths = [path for path in _PATH.findall(read(page)) if _PLACEHOLDER not in path]
    assert len(paths) > 1
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("title", "recipe"), _RECIPE.findall(read("CONTRIBUTING.md")))
def test_a_recipe_names_at_most_five_files_and_what_is_in_them(title: str, recipe: str) -> None:
    steps = _STEP.findall(recipe + "\n\n")
    assert 2 <= len(steps) <= 5, title
    for step in steps:
        paths = [path for path in _PATH.findall(step) if _PLACEHOLDER not in path]
        assert paths or _PLACEHOLDER in step, f"{title}: {step} names no file"
        texts = "".join(read(path) for path in paths)
        named = _NAME.findall(step) if paths and _PLACEHOLDER not in step else []
        assert [name for name in named if name not in texts] == [], f"{title}: {step}"


def test_there_are_recipes() -> None:
    titles = [title for title, _ in _RECIPE.findall(read("CONTRIBUTING.md"))]
    for subject in ("operator", "window", "sink", "format", "command", "route"):
        assert any(subject in title for title in titles), subject


def test_the_picture_of_the_packages_is_up_to_date() -> None:
    advice = "run `make docs`, and commit what it writes"
    assert packages_picture.PICTURE.read_text() == packages_picture.picture(), advice
    assert packages_picture.PAGE.read_text() == packages_picture.page(), advice


def test_the_table_has_every_package_once() -> None:
    listed = re.findall(r"^\| `([\w/]+)/` \|", packages_picture.table(), re.MULTILINE)
    source = ROOT / "sluice"
    packages = {
        file.parent for pattern in ("*", "*/*") for file in source.glob(f"{pattern}/__init__.py")
    }
    assert sorted(listed) == sorted(package.relative_to(source).as_posix() for package in packages)


def test_every_package_has_a_sentence() -> None:
    for layer in packages_picture.layers():
        for name in layer:
            assert packages_picture.sentence(ROOT / "sluice" / name).endswith("."), name
