"""What `sluice run` passes on of the program that it starts."""

from __future__ import annotations

import sys

import pytest

from sluice.submission import run

PROGRAM = """
import os, sys
print("out")
print("WARNING: Using incubator modules: jdk.incubator.vector", file=sys.stderr)
print(f"error {os.environ['SLUICE_RUN']}", file=sys.stderr)
sys.exit(3)
"""


def test_what_is_run_is_heard_without_javas_warning_of_sparks_own_module(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([sys.executable, "-c", PROGRAM], {"SLUICE_RUN": "r1"}) == 3
    said = capfd.readouterr()
    assert (said.out, said.err) == ("out\n", "error r1\n")
