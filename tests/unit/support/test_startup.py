"""Programs import their modules without looking for garbage among them."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc
from sluice.support.startup import importing
with importing():
    assert not gc.isenabled()
    import decimal, {module}
assert gc.isenabled()
print(gc.get_freeze_count() > 0, {then}, flush=True)
"""


def printed(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_what_is_imported_is_never_collected_again() -> None:
    assert printed(
        CODE.format(module="sluice.plan", then="gc.get_freeze_count() > len(gc.get_objects())")
    ) == ("True True\n")


def test_the_last_collection_of_a_program_finds_nothing_to_do() -> None:
    then = "__import__('atexit').register(lambda: print(gc.get_freeze_count() > 10_000 and not gc.get_objects()))"
    # Handlers run in reverse order: the one of this test would run first.
    before = f"import gc; {then}\n"
    assert printed(before + CODE.format(module="sluice.plan", then="0")).endswith("True\n")


def test_a_failed_import_leaves_the_collector_on() -> None:
    code = CODE.format(module="nothing_that_exists", then="0").replace(
        "with importing():",
        "import contextlib\nwith contextlib.suppress(ImportError), importing():",
    )
    assert printed(code) == "True 0\n"
