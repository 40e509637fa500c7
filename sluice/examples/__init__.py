"""Example applications: for each pipeline of `spark_jobs`, sample records and the results to expect.

Each module here has an `Example`, named `EXAMPLE`; `orders` is a package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sluice.errors import SettingsError

if TYPE_CHECKING:
    from sluice.examples.example import Example

NAMES = ("greetings", "words", "products", "orders", "pos", "windows")


def example(name: str) -> Example:
    """The example of one of `NAMES`; SettingsError if it is none."""
    if name not in NAMES:
        raise SettingsError(f"There is no example {name!r}.", next_step=f"Choose one of: {', '.join(NAMES)}.")
    found: Example = import_module(f"sluice.examples.{name}").EXAMPLE
    return found
