"""How programs start and end quickly."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage while the block imports modules, and never again look for garbage among their objects.

    Most objects that an import creates live as long as the program. Python's collector would scan them again and again,
    which takes a fifth of the time that importing PySpark and Sluice takes, and a third of a second when the program
    ends.
    """
    atexit.register(gc.freeze)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
