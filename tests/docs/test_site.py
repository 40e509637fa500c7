"""The documentation is a site without a broken link, a page that no menu lists, or a block that Sphinx cannot read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_sphinx_builds_the_site_without_a_warning(tmp_path: Path) -> None:
    strictly = ("--quiet", "--nitpicky", "--fail-on-warning", "--keep-going")
    folders = (str(ROOT / "docs"), "-d", str(tmp_path / "cache"), str(tmp_path / "site"))
    ran = subprocess.run([sys.executable, "-m", "sphinx", *strictly, *folders], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    page = (tmp_path / "site" / "tutorial.html").read_text()
    assert 'href="how-to/airflow.html"' in page, "the menu"
    assert (tmp_path / "site" / "searchindex.js").is_file()
