"""Finds the names of pipelines in the text of a file, without importing it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_PIPELINE_CALL = re.compile(r"\bPipeline\(\s*(?:name\s*=\s*)?[rR]?([\"'])(.*?)\1")


def declared_names(file: Path) -> tuple[str, ...]:
    """Return the names of a file's pipelines that are literals, as in Pipeline("name")."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError):
        return ()
    names: dict[str, None] = {}
    try:
        tree = ast.parse(text)
    # A file with a syntax error still needs a pipeline name, for the DAG that shows the error.
    except (SyntaxError, ValueError, RecursionError):
        for match in _PIPELINE_CALL.finditer(text):
            names[match[2]] = None
        return tuple(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _literal_name(node)):
            names[name] = None
    return tuple(names)


def _literal_name(call: ast.Call) -> str | None:
    """Return the literal name in a call of Pipeline.

    Return None for other calls and for computed names.
    """
    function = call.func
    if getattr(function, "id", getattr(function, "attr", "")) != "Pipeline":
        return None
    names = call.args[:1]
    names += [keyword.value for keyword in call.keywords if keyword.arg == "name"]
    if names and isinstance(names[0], ast.Constant) and isinstance(names[0].value, str):
        return names[0].value
    return None
