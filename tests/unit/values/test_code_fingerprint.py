"""What changes the hash of a function's code, and what does not."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sluice.topology.author_functions import with_key
from sluice.values.code_fingerprint import code_fingerprint
from sluice.values.function_wrappers import Not

Load = Callable[[str], ModuleType]

BASE = """
from decimal import Decimal

RATE = Decimal("1.1")


def price(amount):
    return amount * RATE


def tag(value):
    return f"{price(value)!r:>{10}}" if value else "-"


class Points:
    def process(self, record, context):
        yield price(record)
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    numbers = itertools.count()
    monkeypatch.syspath_prepend(tmp_path)

    def make(source: str) -> ModuleType:
        """Import the source as a module, from a new file but under the same name."""
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        file = folder / "authors.py"
        file.write_text(source)
        module = ModuleType("authors")
        sys.modules["authors"] = module
        module.__file__ = str(file)
        exec(compile(source, str(file), "exec"), module.__dict__)
        return module

    return make


SAME = {
    "comments, blank lines and formatting": BASE.replace(
        "    return amount * RATE",
        "    # with tax\n\n    return (\n        amount\n        * RATE\n    )",
    ),
    "a docstring": BASE.replace("def tag(value):", 'def tag(value):\n    """Tag it."""'),
    "other lines before it": "import os\n" * 9 + BASE,
    "what it does not use": BASE + "\nOTHER = 1\n\n\ndef other():\n    return OTHER\n",
}
OTHER = {
    "its own code": BASE.replace('else "-"', 'else "?"'),
    "a function that it calls": BASE.replace("amount * RATE", "amount + RATE"),
    "a value that such a function uses": BASE.replace('Decimal("1.1")', 'Decimal("1.2")'),
    "a default": BASE.replace("def price(amount)", "def price(amount, by=2)"),
}


@pytest.mark.parametrize("name", ["tag", "Points"])
def test_the_hash_only_changes_with_the_code(load: Load, name: str) -> None:
    def of(source: str) -> str:
        return code_fingerprint(getattr(load(source), name))

    before = of(BASE)
    assert {what for what, source in SAME.items() if of(source) != before} == set()
    unnoticed = {what for what, source in OTHER.items() if of(source) == before}
    assert unnoticed == (
        {"its own code"} if name == "Points" else set()
    )  # which is the code of `tag` alone


def test_the_hash_is_the_same_in_every_python_version(load: Load) -> None:
    assert code_fingerprint(load(BASE).tag) == "756434a2bf6577de"
    assert code_fingerprint(load(BASE).Points) == "9578abb6f2a85626"
    assert code_fingerprint(lambda value: value + 1) == "45bc78ec3eed8dc4"


def test_the_hash_of_a_model_covers_what_its_validators_use(load: Load) -> None:
    source = """
from pydantic import BaseModel, field_validator

def cents(amount):
    return amount * 100

class Payment(BaseModel):
    amount: int

    @field_validator("amount", mode="before")
    @classmethod
    def in_cents(cls, amount):
        return cents(amount)
"""
    before = code_fingerprint(load(source).Payment)
    assert code_fingerprint(load(source).Payment) == before
    assert code_fingerprint(load(source.replace("* 100", "* 1000")).Payment) != before


def test_lambdas_on_one_line_have_different_hashes() -> None:
    # fmt: off
    same, other, same_again = (lambda v: v + 1), (lambda v: v + 2), (
        lambda v:
            v + 1)
    # fmt: on
    assert code_fingerprint(same) == code_fingerprint(same_again)
    assert code_fingerprint(same) != code_fingerprint(other)


def test_values_that_a_function_captures_count() -> None:
    def adder(number: int) -> Callable[[int], int]:
        return lambda value: value + number

    def add(number: int, value: int) -> int:
        return value + number

    assert code_fingerprint(adder(1)) == code_fingerprint(adder(1)) != code_fingerprint(adder(2))
    assert (
        code_fingerprint(partial(add, 1))
        == code_fingerprint(partial(add, 1))
        != code_fingerprint(partial(add, 2))
    )


def test_functions_without_source_have_a_hash() -> None:
    made: dict[str, Any] = {}
    exec("def one(v): return v + 1\ndef two(v): return v + 2", made)
    assert code_fingerprint(len) != code_fingerprint(max)
    assert code_fingerprint(made["one"]) != code_fingerprint(made["two"])


def test_a_wrapped_function_counts_with_its_own_code() -> None:
    small, large = (
        with_key("here", function, "value") for function in (lambda n: n < 3, lambda n: n > 3)
    )
    assert code_fingerprint(small) != code_fingerprint(large)
    assert code_fingerprint(Not(small)) != code_fingerprint(small)
