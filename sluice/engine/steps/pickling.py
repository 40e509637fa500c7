"""An author's functions and classes on their way to Spark's tasks: by name where they can be imported there."""

from __future__ import annotations

import copyreg
import importlib
import inspect
import sys
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from pyspark import cloudpickle

from sluice.values.modules import load_module
from sluice.values.references import Reference


def _again(values: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**values)


_META = tuple(name for name in dir(msgspec.Meta) if not name.startswith("_"))


def register() -> None:
    """Teach pickle, in this process, to write a plan's references, and constraints such as Digits."""
    copyreg.pickle(msgspec.Meta, lambda meta: (_again, ({name: getattr(meta, name) for name in _META},)))
    copyreg.pickle(Reference, _reduce)


@dataclass(frozen=True)
class Pickled:
    """A function, a class or an instance. Its module is loaded from its file where it cannot be imported by name."""

    module: str
    file: str
    data: bytes
    name: str = ""
    """Of a Struct of a module, which loses its fields when it travels whole: it is looked up there."""

    @classmethod
    def of(cls, value: Any) -> Pickled:
        """Make it ready to travel."""
        inner = inspect.unwrap(value) if callable(value) else value
        owner = inner if hasattr(inner, "__qualname__") else type(inner)
        module = getattr(owner, "__module__", "builtins") or "builtins"
        try:
            file = inspect.getsourcefile(owner) or ""
        except TypeError:
            file = ""
        if file and isinstance(value, type) and issubclass(value, msgspec.Struct) and "<" not in value.__qualname__:
            return cls(module, file, b"", value.__qualname__)
        return cls(module, file, cloudpickle.dumps(value))  # type: ignore[no-untyped-call]

    @cached_property
    def value(self) -> Any:
        """The same value, on whichever machine this is."""
        if self.name:
            return attrgetter(self.name)(load_by_name(self.module, self.file))
        if self.module != "__main__":  # whose functions travel whole
            load_by_name(self.module, self.file)
        return cloudpickle.loads(self.data)


def _load(pickled: Pickled) -> Reference:
    return Reference(loader=pickled)


def _reduce(reference: Reference) -> tuple[Any, tuple[Pickled]]:
    of = reference.loader if isinstance(reference.loader, Pickled) else Pickled.of(reference.value)
    return _load, (of,)


def load_by_name(module: str, file: str) -> Any:
    """The module of that name: imported, or loaded from its file as Spark brought it to this machine."""
    if module == "__main__" and file:
        # The author's script: a task's own main module is Spark's.
        return load_module(local(file))
    if module in sys.modules:
        return sys.modules[module]
    if not module.startswith("sluice-pipeline:"):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError:
            if not file:
                raise
    return load_module(local(file), module)


def local(file: str) -> Path:
    """The pipeline's file: where the driver has it, or as Spark brought it to this executor."""
    if Path(file).exists():
        return Path(file)
    from pyspark import SparkFiles

    return Path(SparkFiles.get(Path(file).name))
