"""Links between pages have targets; the files and settings that pages name exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from sluice import settings
from tests.docs.pages import ROOT, read

FOLDERS = ("*.md", "docs/**/*.md", "tests/**/*.md")
PAGES = sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in ROOT.glob(folder))
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_NAMED_PAGE = re.compile(r"\b((?:docs|tests)/[\w/.-]+\.md)(?:#([\w-]+))?")
_NAMED_FILE = re.compile(r"`([A-Z]+\.md)`")
_FOLDERS_OF_TEXTS = (
    "sluice",
    "spark_jobs",
    "dags",
    "plugins",
    "docs",
    "tests",
    "docker",
    "benchmarks",
)
_SUFFIXES = {".py", ".js", ".html", ".yml", ".yaml", ".json", ".md", ".toml", ".jinja"}
_TARGET = re.compile(r"\bmake ([a-z-]+)(?=[` \n])")
_SETTING = re.compile(r"\bSLUICE_[A-Z_]+\b")
_ELSEWHERE = {"SLUICE_IVY_SETTINGS"}
"""Variables of set-up, which are not in Settings."""
_GONE = {"SLUICE_DELIVERY", "SLUICE_DELTA_JARS"}
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


def test_pages_and_headings_that_the_code_names_exist() -> None:
    """A docstring, an error, a rule of Prometheus: each can send a reader to a page."""
    named = [place for file in texts() for place in _NAMED_PAGE.findall(file.read_text())]
    assert len(named) > 20
    lost = [place for place in named if not exists(*place)]
    assert lost == []


def texts() -> list[Path]:
    """The files of the repository that can name pages."""
    files: list[Path] = []
    for folder in _FOLDERS_OF_TEXTS:
        files += (file for file in (ROOT / folder).rglob("*") if file.suffix in _SUFFIXES)
    return files


def exists(page: str, anchor: str) -> bool:
    file = ROOT / page
    return file.is_file() and (not anchor or anchor in anchors(file))


def test_files_of_the_root_that_pages_name_exist() -> None:
    for page in PAGES:
        names = _NAMED_FILE.findall(read(page))
        assert [name for name in names if not (ROOT / name).is_file()] == [], page


def test_make_targets_and_settings_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    known = set(_SETTING.findall(settings.__doc__ or "")) | _ELSEWHERE
    for page in PAGES:
        code = "\n".join(re.findall(r"`[^`]+`|^```.*?^```", read(page), re.MULTILINE | re.DOTALL))
        assert set(_TARGET.findall(code)) <= targets, page
        named = {_general(name) for name in _SETTING.findall(read(page))}
        assert named <= (known | _GONE if page == "CHANGELOG.md" else known), page


def _general(name: str) -> str:
    """The name of a setting for the connection `shop` as the settings describe it, for `NAME`."""
    for prefix in ("SLUICE_CONNECTION_", "SLUICE_KAFKA_"):
        if name.startswith(prefix):
            return f"{prefix}NAME"
    return name


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
    listed = {page for page in PAGES if page.startswith("docs/decisions/0")}  # by a toctree
    assert set(PAGES) - listed <= seen
