"""References to an author's functions and classes, which a plan can contain as values."""

from __future__ import annotations

from typing import Any, Protocol

from sluice.values.code_fingerprint import code_fingerprint


class Loader(Protocol):
    """Loads a function or class in the process that has unpickled a reference to it."""

    @property
    def value(self) -> Any: ...


class Reference:
    """A reference to an author's function, class or instance.

    `engine.steps.pickling` decides how to pickle the reference, because Spark's tasks may be unable
    to import the object's module. After unpickling, the object is loaded when `value` is first
    read. Two references are equal if they refer to the same object, or to functions with the same
    code.
    """

    def __init__(self, value: Any = None, loader: Loader | None = None) -> None:
        self._value = value
        self.loader = loader

    @property
    def value(self) -> Any:
        """The function, class or instance itself."""
        if self._value is None and self.loader is not None:
            self._value = self.loader.value
        return self._value

    @property
    def name(self) -> str:
        return getattr(self.value, "__qualname__", type(self.value).__qualname__)

    def fingerprint(self) -> str:
        """Return a hash of the object's code."""
        return code_fingerprint(self.value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reference):
            return NotImplemented
        if self.value == other.value:
            return True
        # Importing a file again makes new functions, so compare functions by their code.
        if not callable(self.value) or not callable(other.value):
            return False
        return self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Reference({self.name})"


def reference(value: Any) -> Reference | None:
    """Return a reference to `value`; None for None."""
    if value is None:
        return None
    return Reference(value)
