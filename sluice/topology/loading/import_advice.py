"""Advice for errors that Python raises when a pipeline's file uses Sluice's methods wrongly."""

from __future__ import annotations

import difflib
import inspect
import re
from pathlib import Path

from sluice.errors import error_text
from sluice.topology import window_definitions
from sluice.topology.groups import CogroupedStreams, Grouped, GroupedStream, GroupedTable
from sluice.topology.handles import Handle
from sluice.topology.pipeline import Pipeline
from sluice.topology.streams import Processed, Stream
from sluice.topology.tables import Table

_CLASSES = (
    Pipeline,
    Handle,
    Stream,
    Table,
    Grouped,
    GroupedStream,
    GroupedTable,
    CogroupedStreams,
    Processed,
)
_CLASS_BY_NAME = {kind.__name__: kind for kind in _CLASSES}
_AGGREGATIONS = frozenset({"count", "aggregate", "reduce", "windowed_by"})
_CALLED = re.compile(r"(?:(\w+)\.)?(\w+)\(\) ")
"""The start of the messages of TypeErrors about arguments, such as `Stream.filter() got an
unexpected ...`."""
_DELIVERY = "got an unexpected keyword argument 'delivery'"
"""The end of the message for an argument that methods such as `to` had in earlier versions."""


def next_step(error: BaseException, file: Path) -> str:
    """Return advice after an error that Python raised while importing `file`; empty if unknown."""
    match error:
        case ModuleNotFoundError():
            return "Install the package, or correct its name."
        case AttributeError(name=str(name), obj=obj) if isinstance(obj, _CLASSES):
            return _attribute(name, obj)
        case SyntaxError():
            return "Correct this line, or go back to the last version of the file."
        case TypeError():
            return _arguments(error_text(error))
        case _:
            return ""


def _attribute(name: str, handle: object) -> str:
    if isinstance(handle, Processed):
        return 'Take one of its outputs first: .output, or ["name"].'
    if isinstance(handle, Stream | Table) and name in _AGGREGATIONS:
        return f"Group the records first: group_by(...).{name}(...)."
    public = [attribute for attribute in dir(handle) if not attribute.startswith("_")]
    close = difflib.get_close_matches(name, public, n=1)
    did_you_mean = ""
    if close:
        did_you_mean = f"Did you mean {close[0]}?"
    handles = (Stream, Table, GroupedStream, GroupedTable)
    owners = [kind.__name__ for kind in handles if hasattr(kind, name)]
    belongs = ""
    if owners:
        belongs = f"{name} is a method of {' and '.join(owners)}. "
    return f"{belongs}{did_you_mean}".strip()


def _arguments(message: str) -> str:
    """Return the signature of the Sluice method that the message names."""
    if message.endswith(_DELIVERY):
        return "Remove delivery=: every output is written exactly once."
    called = _CALLED.match(message)
    if called is None:
        return ""
    owner, name = called.groups()
    if owner is None:
        function = getattr(window_definitions, name, None)
    else:
        function = getattr(_CLASS_BY_NAME.get(owner), name, None)
    if not inspect.isfunction(function):
        return ""
    required, optional = [], []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is not parameter.KEYWORD_ONLY:
            required.append(str(parameter.replace(annotation=parameter.empty)))
        elif parameter.default is parameter.empty:
            required.append(f"{parameter.name}=...")
        else:
            optional.append(parameter.name)
    more = ""
    if optional:
        more = f" Optional: {', '.join(optional)}."
    return f"Write {name}({', '.join(required)}).{more}"
