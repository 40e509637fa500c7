"""Runs documentation pages as tests: writes the files that they show, runs their commands, compares the output.

A `python` block whose first line is a comment with a path is a file. All `sh` blocks of a page run
in one shell, and its other `python` blocks in one Python session. A `text` block right after such a
block is its expected output, where `...` stands for any text. `bash` blocks are not run.
"""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"# ([\w/.-]+\.py)\n")
_SAME = doctest.OutputChecker()
_HOW = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Step:
    """A block of a page that is run; `expected` is its output, None if the page does not show it."""

    commands: str
    expected: str | None

    def differs(self, printed: str) -> str:
        """The difference between the output and the page; empty if they match."""
        if self.expected is None or _SAME.check_output(self.expected, printed, _HOW):
            return ""
        return f"{self.commands}\nprinted\n{printed}\ninstead of\n{self.expected}"


def read(page: str) -> str:
    """The text of a page; the path is relative to the repository."""
    return (ROOT / page).read_text()


def files(text: str) -> dict[str, str]:
    """The files that a page shows: path → content."""
    blocks = (body for language, body in _BLOCK.findall(text) if language == "python")
    return {found[1]: body for body in blocks if (found := _PATH.match(body))}


def steps(text: str, language: str = "sh") -> Iterator[Step]:
    """The blocks of a page in this language that are not files, in order."""
    blocks = list(_BLOCK.finditer(text))
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if block[1] == language and not _PATH.match(block[2]):
            said = (
                following is not None
                and following[1] == "text"
                and following.start() == block.end()
            )
            yield Step(block[2], following[2] if said and following else None)


def script(steps: list[Step], separator: str) -> str:
    """A script of all steps. It prints `separator` after each step and ends at the first one that fails."""
    return "".join(
        f"{{\n{step.commands}}}\ndone=$?; echo {separator}; [ $done = 0 ] || exit $done\n"
        for step in steps
    )


def write_files(text: str, folder: Path) -> None:
    """Write the files that a page shows into a folder."""
    for path, content in files(text).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
