"""Links between pages have targets; the files and settings that pages name exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from sluice import settings
from tests.docs.pages import ROOT, read

PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_TARGET = re.compile(r"\bmake ([a-z-]+)(?=[` \n])")
_SETTING = re.compile(r"\bSLUICE_[A-Z_]+\b")
_ELSEWHERE = {"SLUICE_IVY_SETTINGS"}
"""Variables of set-up, which are not in Settings."""
_GONE = {"SLUICE_DELTA_JARS"}
"""Settings that Sluice had. Only the changelog may name them."""


def test_links_have_targets() -> None:
    links = [(page, link) for page in PAGES for link in _LINK.findall(read(page))]
    assert [place for place in links if not has_target(*place)] == []


def has_target(page: str, link: str) -> bool:
    if link.startswith(("http://", "https://")):
        return True
    path, _, anchor = link.partition("#")
    target = (ROOT / page).parent / path if path else ROOT / page
    return target.exists() and (not anchor or anchor in anchors(target))


@cache
def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in _HEADING.findall(page.read_text())}


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_make_targets_and_settings_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    known = set(_SETTING.findall(settings.__doc__ or "")) | _ELSEWHERE
    for page in PAGES:
        code = "\n".join(re.findall(r"`[^`]+`|^```.*?^```", read(page), re.MULTILINE | re.DOTALL))
        assert set(_TARGET.findall(code)) <= targets, page
        named = set(_SETTING.findall(read(page)))
        assert named <= (known | _GONE if page == "CHANGELOG.md" else known), page


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
