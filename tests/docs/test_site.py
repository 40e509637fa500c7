"""The documentation is a site without a broken link, a page that no menu lists, or a block that Sphinx cannot read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


STRICTLY = ("--quiet", "--nitpicky", "--fail-on-warning", "--keep-going")


def build(builder: str, folder: Path) -> None:
    command = (sys.executable, "-m", "sphinx", *STRICTLY, "-b", builder, str(ROOT / "docs"))
    ran = subprocess.run(
        [*command, "-d", str(folder / "cache"), str(folder / "site")],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.heavy  # test_links.py follows the links, and `make docs` fails for a warning
def test_sphinx_reads_every_page_without_a_warning(tmp_path: Path) -> None:
    build("dummy", tmp_path)  # finds what the other builder warns of, and takes a third of its time


@pytest.mark.heavy
def test_the_site_has_a_menu_and_a_search(tmp_path: Path) -> None:
    build("html", tmp_path)
    page = (tmp_path / "site" / "tutorial.html").read_text()
    assert 'href="how-to/airflow.html"' in page, "the menu"
    assert (tmp_path / "site" / "searchindex.js").is_file()
