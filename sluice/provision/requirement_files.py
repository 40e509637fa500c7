"""The files that decide what pip installs: a file of requirements, and the files that it names."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sluice.errors import SettingsError

ARCHIVES = (".zip", ".tar.gz", ".tgz")
"""The endings of the file names of archives of installed packages."""
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_COMMENT = re.compile(r"(^|\s)#.*$")
_CONTINUED = re.compile(r"\\\r?\n")
_INCLUDED = re.compile(r"(?:-[rc]\s*=?|--(?:requirement|constraint)[\s=])\s*(\S+)")
_EDITABLE = re.compile(r"(?:-e|--editable)\b")
_FILE_ADDRESS = re.compile(r"(?:^|@\s*)(file:\S+)")


def contents(requirements: Path) -> Iterator[bytes]:
    """Yield the contents of a file of requirements or an archive, and of all files that it names.

    Raise SettingsError if a file cannot be read, or if changes of a source would not be noticed.
    """
    return _Reader(requirements.parent).contents(requirements)


@dataclass(frozen=True)
class _Reader:
    folder: Path
    """The folder in which pip is started: paths of packages are relative to it."""
    seen: set[Path] = field(default_factory=set)

    def contents(self, file: Path) -> Iterator[bytes]:
        if file in self.seen:
            return
        self.seen.add(file)
        content = _read(file)
        yield content
        if file.name.endswith(ARCHIVES):
            return
        for line in _lines(content):
            included = _INCLUDED.match(line)
            if included is None:
                yield from self._package(file, line)
            elif "://" not in included[1]:
                # A file at a URL is not read, so changes of it are not noticed. Authors have to
                # write exact versions there.
                yield from self.contents(file.parent / included[1])

    def _package(self, file: Path, line: str) -> Iterator[bytes]:
        """Yield the content of a package that a line names by its path."""
        if _EDITABLE.match(line):
            raise SettingsError(
                f"{file} names the editable package {line}, which cannot be copied to the folder "
                "of the libraries.",
                next_step="Build a wheel of it (pip wheel), and write the wheel's path.",
            )
        path = self._path(line)
        if path is None:
            return
        if path.is_dir():
            raise SettingsError(
                f"{file} names the folder {line}, but Sluice cannot notice changes in a folder.",
                next_step="Build a wheel of it (pip wheel), and write the wheel's path.",
            )
        if path.is_file():
            yield _read(path)

    def _path(self, line: str) -> Path | None:
        """Return the path in a line; None if the line names a package of an index instead."""
        address = _FILE_ADDRESS.search(line)
        if address is not None:
            return Path(unquote(urlsplit(address[1]).path))
        # What follows the path: extras, a marker or hashes.
        name = re.split(r"\s|;|\[", line, maxsplit=1)[0]
        if name.startswith((".", "/")) or name.endswith((".whl", *ARCHIVES)):
            return self.folder / name
        return None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{file} cannot be read: {error.strerror}.",
            next_step="Create the file, or correct its path in sluice.toml (`requirements`). "
            "The path is relative to the folder of sluice.toml.",
        ) from None


def _lines(content: bytes) -> Iterator[str]:
    """Yield the lines of a file of requirements, without comments, as pip reads them."""
    encoding = "utf-8"
    for mark, of_mark in _MARKS.items():
        if content.startswith(mark):
            encoding = of_mark
    text = _CONTINUED.sub("", content.decode(encoding, errors="replace"))
    for line in text.splitlines():
        meant = _COMMENT.sub("", line).strip()
        if meant:
            yield meant
