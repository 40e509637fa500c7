"""Every error has a status, a title and a next step."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sluice
from sluice import errors
from sluice.errors import NotFound, QueryError, SluiceError, StateError, sentence


def group(kind: type[SluiceError]) -> list[type[SluiceError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in group(child))]


EVERY = [kind for kind in group(SluiceError) if kind.__module__ == errors.__name__]


def test_every_error_derives_from_sluice_error() -> None:
    here = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert here == set(EVERY)
    assert len(EVERY) > 5


@pytest.mark.parametrize("kind", EVERY)
def test_an_error_has_a_status_a_title_and_a_docstring(kind: type[SluiceError]) -> None:
    assert 400 <= kind.status < 600
    assert kind.title
    assert not kind.title.endswith(".")
    assert (kind.__doc__ or "").strip()
    assert kind is SluiceError or kind.title != SluiceError.title


@pytest.mark.parametrize("kind", EVERY)
def test_an_error_prints_its_detail_and_next_step(kind: type[SluiceError]) -> None:
    error = kind("The cellar is full of water.", next_step="Pull the plug.")
    assert error.detail == "The cellar is full of water."
    assert str(error) == "The cellar is full of water. Pull the plug."


def test_the_next_step_defaults_to_that_of_the_class() -> None:
    assert StateError("x").next_step == StateError.next_step
    assert str(StateError("Gone.")) == f"Gone. {StateError.next_step}"
    assert str(NotFound("Gone.", next_step="Look elsewhere.")) == "Gone. Look elsewhere."


def test_not_found_is_a_query_error_with_status_404() -> None:
    assert issubclass(NotFound, QueryError)
    assert (QueryError.status, NotFound.status, StateError.status) == (400, 404, 503)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("connection refused\n", "connection refused."),
        ("Broker: no.", "Broker: no."),
        (OSError("Is the server accepting connections?"), "Is the server accepting connections?"),
    ],
)
def test_a_message_of_another_program_ends_as_a_sentence(message: object, expected: str) -> None:
    assert sentence(message) == expected


def test_every_error_of_a_pipelines_file_says_what_to_do() -> None:
    package = Path(sluice.__file__).parent
    without: list[str] = []
    for file in [*package.glob("topology/**/*.py"), *package.glob("values/*.py")]:
        for function in ast.walk(ast.parse(file.read_text())):
            # This function's errors already say what they expect.
            if not isinstance(function, ast.FunctionDef) or function.name == "require_instance":
                continue
            for call in ast.walk(function):
                if not isinstance(call, ast.Call) or ast.unparse(call.func) != "TopologyError":
                    continue
                if "next_step" not in [keyword.arg for keyword in call.keywords]:
                    without.append(f"{file.name}:{call.lineno}")
    assert without == []
