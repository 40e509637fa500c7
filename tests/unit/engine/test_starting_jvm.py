"""How a driver connects to the JVM that it has started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.engine.starting_jvm import StartingJvm
from sluice.errors import SettingsError

pytestmark = pytest.mark.unit

STARTS = """
import pathlib, struct, sys, time
time.sleep(0.1)
file = pathlib.Path(sys.argv[1])
file.with_suffix(".new").write_bytes(struct.pack(">ii", 40123, 6) + b"secret")
file.with_suffix(".new").rename(file)
sys.stdin.read()
"""


def jvm(program: str, folder: Path) -> StartingJvm:
    """A program in place of the JVM."""
    file = folder / "connection"
    command = [sys.executable, "-c", program, str(file)]
    return StartingJvm(subprocess.Popen(command, stdin=subprocess.PIPE), file)


def test_pyspark_gets_the_port_and_the_secret_once_the_jvm_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
        monkeypatch.setenv(name, "")
    starting = jvm(STARTS, tmp_path)
    starting.connect()
    assert os.environ["PYSPARK_GATEWAY_PORT"] == "40123"
    assert os.environ["PYSPARK_GATEWAY_SECRET"] == "secret"
    starting.process.communicate(timeout=30)
    assert starting.process.returncode == 0, "it ends when its standard input ends"


def test_a_jvm_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    starting = jvm("raise SystemExit(3)", tmp_path)
    with pytest.raises(SettingsError, match="exited with status 3 while it was starting"):
        starting.connect()
    starting.process.communicate(timeout=30)
