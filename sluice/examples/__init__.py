"""Example applications: for each pipeline in `spark_jobs`, sample records and the expected results.

Each module `NAME_example` defines an `Example` with the name `EXAMPLE`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sluice.errors import SettingsError

if TYPE_CHECKING:
    from sluice.examples.example import Example

NAMES = ("greetings", "words", "products", "orders", "pos", "windows")
FORMATS = ("avro", "protobuf", "json_schema")
"""The formats, besides JSON, in which the orders example can run. They need a schema registry."""


def load_example(name: str) -> Example:
    """Return the example with this name. Raise SettingsError unless it is one of `NAMES`."""
    if name not in NAMES:
        raise SettingsError(
            f"There is no example {name!r}.", next_step=f"Choose one of: {', '.join(NAMES)}."
        )
    package = "sluice.examples.orders" if name == "orders" else "sluice.examples"
    module = import_module(f"{package}.{name}_example")
    return module.EXAMPLE  # type: ignore[no-any-return]
