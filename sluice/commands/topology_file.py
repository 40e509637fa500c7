"""A pipeline's topology as one HTML file, with the drawing of the page in Airflow.

The file needs no other files.
"""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files

from sluice.topology import Pipeline, drawing

_STYLE = """\
body { margin: 0; padding: 20px 24px; background: var(--back); color: var(--text); }
body { font: 14px/1.45 Inter, system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { margin: 0 0 12px; font-size: 20px; }
button { font: inherit; color: inherit; background: var(--card); }
button { border: 1px solid var(--edge); border-radius: 6px; }
#graph { padding: 14px 16px; background: var(--card); }
#graph { border: 1px solid var(--line); border-radius: 10px; }
"""
_DRAW = """\
const topology = JSON.parse(document.getElementById("topology").textContent);
const drawn = drawGraph(topology.name, readGraph(topology.svg), dagre);
document.getElementById("graph").append(drawn);
"""


def topology_file(pipeline: Pipeline) -> str:
    """Return the HTML file as text."""
    style = _static("colours.css") + _static("graph.css") + _STYLE
    # Both modules become one script, in which `import` and `export` are neither needed nor allowed.
    modules = _static("graph_layout.js") + _static("graph.js")
    module = re.sub(r"^(export |import [^;]*;$)", "", modules, flags=re.MULTILINE)
    topology = json.dumps({"name": pipeline.name, "svg": drawing.svg(pipeline)})
    # The pipeline's author chooses names and expressions, which must not end the script element.
    data = topology.replace("<", "\\u003c")
    name = escape(pipeline.name)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}</title>",
            f"<style>{style}</style></head>",
            f'<body><h1>{name}</h1><main id="graph"></main>',
            f'<script type="application/json" id="topology">{data}</script>',
            f"<script>{_static('vendor/dagre.min.js')}</script>",
            f'<script type="module">{_static("theme.js")}{module}{_DRAW}</script>',
            "</body></html>",
        ]
    )


def _static(name: str) -> str:
    return (files("sluice.api.page") / "static" / name).read_text(encoding="utf-8")
