"""Find the author's current line, and all files with code on the call stack."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

_HERE = f"{Path(__file__).parent}{os.sep}"


def source_line() -> str:
    """Return `file:line` of the innermost caller outside of this package."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    if frame is None:
        return "?"
    _, _, name = frame.f_code.co_filename.rpartition(os.sep)
    return f"{name}:{frame.f_lineno}"


def files_running() -> frozenset[str]:
    """Return the files whose code is being executed, up to the innermost import of a module."""
    # Stop at the import of a module, because the code that imports it belongs to another module.
    files, frame = set[str](), inspect.currentframe()
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return frozenset(files)
