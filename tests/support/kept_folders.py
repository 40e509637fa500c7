"""Temporary folders that are kept if something fails, because the error may name a log in them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def kept_on_failure(prefix: str) -> Iterator[Path]:
    """Yield a new folder, and delete it after the block, unless an error ends the block.

    It is also deleted if the user interrupts the block.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    is_kept = False
    try:
        yield folder
    except Exception:
        is_kept = True
        print(
            f"The logs are kept in {folder}. Delete the folder when you have read them.",
            file=sys.stderr,
        )
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
