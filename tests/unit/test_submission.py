"""The command line of spark-submit, and how it is run."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest
from typing_extensions import override

from sluice.submission import APPLICATION, Submission

pytestmark = pytest.mark.unit

PROGRAM = """
import os, sys
print("out")
print("WARNING: Using incubator modules: jdk.incubator.vector", file=sys.stderr)
print(f"error {os.environ['SLUICE_RUN']}", file=sys.stderr)
sys.exit(3)
"""


def test_empty_options_are_omitted() -> None:
    cluster = Submission("spark://host:7077", ("orders", "main"), {}, jars="a.jar,b.jar").command
    assert cluster[1:] == ["--master", "spark://host:7077", "--jars", "a.jar,b.jar", str(APPLICATION), "orders", "main"]
    local = Submission("local[2]", ("orders",), {}, driver_class_path="jars/*", driver_java_options="-X").command
    assert local[3:7] == ["--driver-class-path", "jars/*", "--driver-java-options", "-X"]
    assert APPLICATION.is_file()


@dataclass(frozen=True)
class Program(Submission):
    """A fake program in place of spark-submit."""

    @property
    @override
    def command(self) -> list[str]:
        return [sys.executable, "-c", PROGRAM]


def test_output_is_forwarded_without_javas_warning(capfd: pytest.CaptureFixture[str]) -> None:
    assert Program("local[2]", (), {"SLUICE_RUN": "r1"}).run() == 3
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("out\n", "error r1\n")
