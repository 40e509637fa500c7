"""A broker outlives the program that starts it, so it holds none of the program's files."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from sluice.local import broker

pytestmark = pytest.mark.unit


def test_a_broker_does_not_hold_the_lock_under_which_it_was_started(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        os.set_inheritable(held.fileno(), True)
        pid = broker._spawn(["/bin/sleep", "60"], tmp_path / "log")
    try:
        with lock.open() as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_a_broker_writes_its_log_and_reads_nothing(tmp_path: Path) -> None:
    script = "read line || echo nothing; echo an error >&2"
    pid = broker._spawn(["/bin/sh", "-c", script], tmp_path / "log")
    os.waitpid(pid, 0)
    assert (tmp_path / "log").read_text() == "nothing\nan error\n"
