"""Example applications: for each pipeline in `spark_jobs`, sample records and the expected results.

Each module in this package defines an `Example` with the name `EXAMPLE`; `orders` is a package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sluice.errors import SettingsError

if TYPE_CHECKING:
    from sluice.examples.example import Example

NAMES = ("greetings", "words", "products", "orders", "pos", "windows")


def load_example(name: str) -> Example:
    """The example with this name. Raises SettingsError unless the name is one of `NAMES`."""
    if name not in NAMES:
        raise SettingsError(f"There is no example {name!r}.", next_step=f"Choose one of: {', '.join(NAMES)}.")
    module = import_module(f"sluice.examples.{name}")
    return module.EXAMPLE  # type: ignore[no-any-return]
