"""Every command of the command line that a message or a page of the documentation names exists, with its options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from sluice.commands.cli import app

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
ROOT_COMMAND: Any = typer.main.get_command(app)
NAMED = re.compile(r"(?<!from )\bsluice ([a-z][a-z-]*(?: (?:[a-z][a-z-]*|[A-Z_]+|X|--[a-z-]+))*)")
"""A command with arguments in capitals, `X` for a value that is known only at run time, and
options."""
OTHER_NAMES = {"tests"}
"""The word after `sluice` in the name of a Spark application."""
IN_PAGES = re.compile(r"`(sluice [^`]+)`|bin/(sluice [^\n#]+)")


def texts_of_code() -> Iterator[tuple[str, str]]:
    """The texts in the code of the package, with their places."""
    for file in sorted((ROOT / "sluice").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else "X" for part in node.values
                )
                yield f"{file.relative_to(ROOT)}:{node.lineno}", "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{file.relative_to(ROOT)}:{node.lineno}", node.value


def texts_of_pages() -> Iterator[tuple[str, str]]:
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for found in IN_PAGES.finditer(file.read_text()):
            yield str(file.relative_to(ROOT)), " ".join((found.group(1) or found.group(2)).split())


def problem(text: str) -> str:
    """Why a text that follows `sluice` names no command; empty if it does, or is prose."""
    words = re.findall(r"--[a-z-]+|[A-Za-z_-]+", text)
    command = ROOT_COMMAND
    while words and hasattr(command, "commands"):
        name = words.pop(0)
        if name not in command.commands:
            is_command = command is ROOT_COMMAND and name not in OTHER_NAMES
            return f"there is no command {name}" if is_command else ""
        command = command.commands[name]
    options = {option: parameter for parameter in command.params for option in parameter.opts}
    most = sum(parameter.param_type_name == "argument" for parameter in command.params)
    arguments: list[str] = []
    is_value = False
    for word in words:
        if word.startswith("--"):
            if word not in {*options, "--help"}:
                return f"{command.name} has no option {word}"
            is_value = word in options and not options[word].is_flag
        elif word.isupper() and not is_value:
            arguments.append(word)
        else:
            is_value = False
    return f"{command.name} takes no argument {arguments[most]}" if len(arguments) > most else ""


def problems(texts: Iterator[tuple[str, str]]) -> Iterator[str]:
    for place, text in texts:
        for named in NAMED.finditer(text):
            if why := problem(named.group(1)):
                yield f"{place}: {named.group(0)!r}: {why}"


def test_messages_name_commands_that_exist() -> None:
    assert list(problems(texts_of_code())) == []


def test_pages_name_commands_that_exist() -> None:
    assert list(problems(texts_of_pages())) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rebuild X --from-topics.", ""),
        ("rebild X", "there is no command rebild"),
        ("recover NAME --dry", "recover has no option --dry"),
        ("warm X", "warm takes no argument X"),
        ("dead-letters redrive X --since TIME", ""),
        ("generations drop X", ""),
    ],
)
def test_a_mistake_is_found(text: str, why: str) -> None:
    assert problem(text) == why
