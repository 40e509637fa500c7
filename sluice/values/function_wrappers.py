"""Wrappers that give authors' functions a common signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sluice.values.headers import Headers


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call of an author's function, or of its wrapper, returns a coroutine."""
    own = inspect.unwrap(function)
    # An instance of a class with `__call__` may be async, too.
    called = own if inspect.isroutine(own) else getattr(own, "__call__", own)  # noqa: B004
    return inspect.iscoroutinefunction(own) or inspect.iscoroutinefunction(called)


class Wrapper:
    """Wraps an author's function and keeps its name.

    Pickling and fingerprints follow `__wrapped__` to the author's own module and code.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = self.__wrapped__ = function
        for name in ("__module__", "__name__", "__qualname__"):
            if hasattr(function, name):
                setattr(self, name, getattr(function, name))


class WithoutKey(Wrapper):
    """Calls the author's function without the key."""

    def __call__(self, key: str | None, *arguments: Any) -> Any:
        return self.function(*arguments)


class WithHeaders(Wrapper):
    """An author's function that takes a record's headers after the key and the value."""

    def __call__(self, key: Any, value: Any, headers: Headers) -> Any:
        return self.function(key, value, headers)


class DecoderWithHeaders(Wrapper):
    """An author's decoder that takes a record's headers after the bytes of its value."""

    def __call__(self, data: bytes, headers: Headers) -> Any:
        return self.function(data, headers)


def for_key(function: Callable[..., Any], key: str) -> Callable[..., Any]:
    """Bind the key as a function's first argument, for many calls."""
    # Bind the author's function itself, because calling the wrapper takes longer than many
    # functions.
    if isinstance(function, WithoutKey):
        return function.function
    return partial(function, key)


@dataclass(frozen=True)
class Print:
    """Writes a record to standard output, as Kafka Streams' `Printed` does."""

    label: str

    def __call__(self, key: str | None, value: Any) -> None:
        print(f"[{self.label}]: {key}, {value}", flush=True)


class Not(Wrapper):
    """Negates the result of a condition."""

    def __call__(self, *arguments: Any) -> bool:
        return not self.function(*arguments)


class Chooses(Wrapper):
    """A condition: whether the author's function chooses one of these topics for the record."""

    def __init__(self, function: Callable[..., Any], topics: tuple[str, ...]) -> None:
        super().__init__(function)
        self.topics = topics

    def __call__(self, *arguments: Any) -> bool:
        return self.function(*arguments) in self.topics


@dataclass(frozen=True)
class NoTopic:
    """Raises an error for a record for which the author's function chose none of the topics."""

    topics: tuple[str, ...]

    def __call__(self, key: str | None, value: Any) -> None:
        raise ValueError(f"none of the topics {', '.join(self.topics)} was chosen for the record")
