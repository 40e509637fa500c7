"""Every name that authors need for annotations and except clauses is exported by `sluice`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator

import pytest

import sluice
from sluice import (
    GlobalTable,
    GroupedStream,
    GroupedTable,
    Pipeline,
    Processed,
    Stream,
    Table,
    WindowedStream,
    errors,
    public_names,
)

HANDLES = (
    Pipeline,
    Stream,
    Table,
    GlobalTable,
    GroupedStream,
    GroupedTable,
    WindowedStream,
    Processed,
)
AUTHORS_ERRORS = (
    errors.SluiceError,
    errors.TopologyError,
    errors.EngineError,
    errors.QueryError,
    errors.StateError,
)


def classes(annotation: object) -> Iterator[type]:
    """The classes in an annotation, including those in brackets."""
    origin = typing.get_origin(annotation)
    for part in (origin, *typing.get_args(annotation)) if origin else (annotation,):
        if part is annotation or part is origin:
            if inspect.isclass(part):
                yield part
        else:
            yield from classes(part)


@pytest.mark.parametrize("handle", HANDLES)
def test_types_in_signatures_are_exported(handle: type) -> None:
    names = set()
    for name, method in inspect.getmembers(handle, inspect.isfunction):
        if not name.startswith("_") and name not in ("add", "claim"):
            for annotation in typing.get_type_hints(method, localns=vars(public_names)).values():
                names |= {
                    kind.__name__
                    for kind in classes(annotation)
                    if kind.__module__.startswith("sluice.")
                }
    assert names <= set(sluice.__all__)


def test_errors_are_exported() -> None:
    assert {error.__name__ for error in AUTHORS_ERRORS} <= set(sluice.__all__)


def test_every_exported_name_exists() -> None:
    assert [name for name in sluice.__all__ if not hasattr(sluice, name)] == []
