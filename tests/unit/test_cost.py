"""The costs that benchmarks measure."""

from __future__ import annotations

import os

import psutil
import pytest

from benchmarks import cost


def test_a_process_that_ends_during_a_sample_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(process: psutil.Process) -> str:
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(cost, "_program", ended)
    usage = cost.Usage(os.getpid())
    usage.sample()
    assert usage.cpu_by_program == {"JVM": 0, "workers": 0, "driver": 0}
