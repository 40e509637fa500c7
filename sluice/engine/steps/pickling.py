"""Pickles an author's functions and classes for Spark's tasks, by name if tasks can import them."""

from __future__ import annotations

import copyreg
import importlib
import inspect
import sys
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

import msgspec
from pyspark import cloudpickle
from pyspark.cloudpickle import CloudPickler
from typing_extensions import override

from sluice.errors import EngineError
from sluice.values.contracts import is_class_with_fields
from sluice.values.pipeline_modules import DriverStarts, is_name_of_file, load_module
from sluice.values.references import Reference
from sluice.values.schema_structs import struct_of_schema


def _again(values: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**values)


_META = tuple(name for name in dir(msgspec.Meta) if not name.startswith("_"))


def register() -> None:
    """Register picklers for a plan's references and for constraints such as Digits."""
    copyreg.pickle(msgspec.Meta, _reduce_meta)
    copyreg.pickle(Reference, _reduce)


def _reduce_meta(meta: msgspec.Meta) -> tuple[Any, tuple[dict[str, Any]]]:
    return _again, ({name: getattr(meta, name) for name in _META},)


@dataclass(frozen=True)
class Pickled:
    """A pickled function, class or instance.

    If its module cannot be imported by name, the module is loaded from its file.
    """

    module: str
    file: str
    data: bytes
    name: str = ""
    """The name of a class that is pickled by name, such as a module's Struct or Enum; otherwise
    empty. If they were pickled by value, a Struct would lose its fields, and an Enum's members
    would differ from those in the Structs' fields."""

    @classmethod
    def of(cls, value: Any) -> Pickled:
        if callable(value):
            inner = inspect.unwrap(value)
        else:
            inner = value
        if hasattr(inner, "__qualname__"):
            owner = inner
        else:
            owner = _class_within(inner)
        module = getattr(owner, "__module__", "builtins") or "builtins"
        file = _file(owner)
        if file and _is_named_class(value) and not _is_of_schema(value):
            return cls(module, file, b"", value.__qualname__)
        buffer = BytesIO()
        _Pickler(buffer).dump(value)  # type: ignore[no-untyped-call]
        return cls(module, file, buffer.getvalue())

    @cached_property
    def value(self) -> Any:
        if self.name:
            return _named(self.module, self.file, self.name)
        # The functions of a script are pickled by value. The pickle of any other function needs the
        # function's module.
        if self.module != "__main__":
            load_by_name(self.module, self.file)
        return cloudpickle.loads(self.data)


class _Pickler(CloudPickler):
    """Pickles a script's functions by value, but the script's Structs and Enums by name.

    A schema's Structs are pickled as the schema's text, because no file contains them.
    """

    @override
    def reducer_override(self, obj: Any) -> Any:
        if _is_of_schema(obj):
            return struct_of_schema, obj.__registered_schema__
        if _is_named_class(obj) and obj.__module__ == "__main__":
            file = _file(obj)
            if file:
                return _named, (obj.__module__, file, obj.__qualname__)
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _class_within(value: Any) -> type:
    """Return an instance's class, or the first class in a union such as `Created | Cancelled`."""
    for member in get_args(value):
        if isinstance(member, type):
            return member
    return type(value)


def _is_named_class(value: Any) -> bool:
    is_enum = isinstance(value, type) and issubclass(value, Enum)
    return (is_enum or is_class_with_fields(value)) and "<" not in value.__qualname__


def _is_of_schema(value: Any) -> bool:
    return isinstance(value, type) and hasattr(value, "__registered_schema__")


def _file(owner: Any) -> str:
    """Return the path of the file that defines a class or a function; empty if it is built in."""
    try:
        return inspect.getsourcefile(owner) or ""
    except TypeError:
        return ""


def _named(module: str, file: str, name: str) -> Any:
    loaded = load_by_name(module, file)
    try:
        return attrgetter(name)(loaded)
    except AttributeError:
        raise EngineError(
            f"Spark's workers run {file} up to its first TopologyTestDriver, and find no class "
            f"{name} there.",
            next_step=(
                f"Define {name} above the first driver, or start the driver below: "
                'if __name__ == "__main__":.'
            ),
        ) from None


def _load(pickled: Pickled) -> Reference:
    return Reference(loader=pickled)


def _reduce(reference: Reference) -> tuple[Any, tuple[Pickled]]:
    pickled = reference.loader
    if not isinstance(pickled, Pickled):
        pickled = Pickled.of(reference.value)
    return _load, (pickled,)


def load_by_name(module: str, file: str) -> Any:
    """Import a module by name, or load it from its file, which Spark copies to executors."""
    if module == "__main__" and file:
        # `__main__` was the author's script in the driver. In a task, `__main__` is Spark's worker,
        # so the script is loaded from its file.
        return load_module(local(file))
    if module in sys.modules:
        return sys.modules[module]
    if not is_name_of_file(module):
        try:
            return importlib.import_module(module)
        except (ModuleNotFoundError, DriverStarts):
            if not file:
                raise
    return load_module(local(file), module)


def local(file: str) -> Path:
    """Return the path of the pipeline's file.

    On a cluster's executor, this is the driver's copy.
    """
    from pyspark import SparkFiles

    path = Path(file)
    # An executor's host may have another version of the file at the same path, so use the driver's
    # copy there.
    if SparkFiles._is_running_on_worker and SparkFiles.getRootDirectory() == ".":
        return Path(SparkFiles.get(path.name))
    return path
