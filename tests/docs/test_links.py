"""Links between pages have targets; the files and settings that pages name exist."""

from __future__ import annotations

import re

import pytest

from sluice import settings
from tests.docs.pages import ROOT, read

PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_TARGET = re.compile(r"\bmake ([a-z-]+)(?=[` \n])")
_SETTING = re.compile(r"\bSLUICE_[A-Z_]+\b")
_ELSEWHERE = {"SLUICE_IVY_SETTINGS"}
"""Variables of set-up, which are not in Settings."""


@pytest.mark.parametrize("page", PAGES)
def test_links_have_targets(page: str) -> None:
    for link in _LINK.findall(read(page)):
        if not link.startswith(("http://", "https://")):
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            assert target.exists(), link
            if anchor:
                assert anchor in {slug(heading) for heading in _HEADING.findall(target.read_text())}


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_and_settings_exist(page: str) -> None:
    code = "\n".join(re.findall(r"`[^`]+`|^```.*?^```", read(page), re.MULTILINE | re.DOTALL))
    assert set(_TARGET.findall(code)) <= set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    known = set(_SETTING.findall(settings.__doc__ or "")) | _ELSEWHERE
    assert set(_SETTING.findall(read(page))) <= known


def test_the_readme_links_to_every_page() -> None:
    seen: set[str] = set()
    todo = ["README.md"]
    while todo:
        page = todo.pop()
        seen.add(page)
        for link in _LINK.findall(read(page)):
            path = ((ROOT / page).parent / link.partition("#")[0]).resolve()
            if path.suffix == ".md" and path.exists() and str(path.relative_to(ROOT)) not in seen:
                todo.append(str(path.relative_to(ROOT)))
    decisions = {page for page in PAGES if page.startswith("docs/decisions/")}  # linked as a folder
    assert set(PAGES) - decisions <= seen
