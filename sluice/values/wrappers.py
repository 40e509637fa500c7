"""Functions around an author's functions, so that the engine calls all of them alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Wrapper:
    """A function around an author's function, under the author's name.

    `__wrapped__` leads pickling and fingerprints to the author's own module and code.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = self.__wrapped__ = function
        for name in ("__module__", "__name__", "__qualname__"):
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))


class WithoutKey(Wrapper):
    def __call__(self, key: str | None, *arguments: Any) -> Any:
        return self.function(*arguments)


class Not(Wrapper):
    """The opposite of a condition."""

    def __call__(self, *arguments: Any) -> bool:
        return not self.function(*arguments)
