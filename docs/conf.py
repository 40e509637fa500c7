"""Sphinx's configuration. `make docs` builds this folder's pages, with search, into build/docs."""

from __future__ import annotations

from sphinx.application import Sphinx

import sluice

project = "Sluice"
copyright = "the authors of Sluice"  # noqa: A001
version = release = sluice.__version__

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
# A link to a heading is checked like a link to a page.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

html_theme = "furo"
html_title = "Sluice"
html_static_path = ["style"]
html_css_files = ["wide.css"]
html_copy_source = False


def setup(app: Sphinx) -> None:
    """Leave the text of the project's own pages out of the search, which is for users."""
    app.connect("doctree-read", _leave_out_of_search)


def _leave_out_of_search(app: Sphinx, _: object) -> None:
    page = app.env.docname
    if page.startswith("decisions/") or page == "licences":
        app.env.metadata[page]["nosearch"] = "true"
