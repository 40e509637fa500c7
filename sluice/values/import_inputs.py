"""Records the files and environment variables that the import of a file reads.

A later process can then tell whether an import would read the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

_UNSTABLE = ("/proc/", "/sys/")
"""Files below these folders are not recorded, because their contents differ at each read."""
_SETTLED_SECONDS = 2.0
"""Modification times are not precise. If a file has changed within this number of seconds, it may
change again and still have the same modification time."""


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """The files and environment variables that an import has read."""

    files: dict[str, str]
    """Path → the digest of the file's content; an empty text if there was no such file."""
    variables: dict[str, str]
    """Environment variable → the digest of its value; an empty text if the variable was not set."""

    @property
    def are_unchanged(self) -> bool:
        """Whether an import would read the same now."""
        if self.variables != _digests_of_variables(self.variables):
            return False
        return all(_digest_of_file(path) == digest for path, digest in self.files.items())


@contextmanager
def recorded_inputs() -> Iterator[Callable[[], Inputs | None]]:
    """Record the files and variables that the block reads.

    Yields a function that returns the inputs; None if a file has just changed.

    Python cannot remove the hook that is called for each opened file, so call this only in a
    process that ends soon after the block.
    """
    paths: set[str] = set()
    variables: set[str] = set()
    is_recording = True

    def see(event: str, arguments: tuple[Any, ...]) -> None:
        if is_recording and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            paths.add(str(Path(os.fsdecode(arguments[0])).absolute()))

    class RecordingEnvironment(type(os.environ)):  # type: ignore[misc]
        def __getitem__(self, name: str) -> str:
            if is_recording:
                variables.add(name)
            return str(super().__getitem__(name))

    begun = time.time()
    sys.addaudithook(see)
    os.environ.__class__ = RecordingEnvironment

    def inputs() -> Inputs | None:
        nonlocal is_recording
        is_recording = False
        files: dict[str, str] = {}
        for path in sorted(set(map(_source_of, paths))):
            if path.startswith(_UNSTABLE):
                continue
            file = Path(path)
            if file.exists() and not file.is_file():
                continue  # The file is a device, such as /dev/null.
            if file.exists() and file.stat().st_mtime > begun - _SETTLED_SECONDS:
                return None
            files[path] = _digest_of_file(path)
        return Inputs(files=files, variables=_digests_of_variables(variables))

    yield inputs


def _source_of(path: str) -> str:
    """Return the path of a compiled module's source; any other path unchanged."""
    if path.endswith(".pyc"):
        with suppress(ValueError):
            return importlib.util.source_from_cache(path)
    return path


def _digest_of_file(path: str) -> str:
    try:
        return _digest(Path(path).read_bytes())
    except OSError:
        return ""


def _digests_of_variables(names: Iterable[str]) -> dict[str, str]:
    digests: dict[str, str] = {}
    for name in names:
        value = os.environ.get(name)
        digests[name] = ""
        if value is not None:
            digests[name] = _digest(value.encode(errors="surrogateescape"))
    return digests


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
