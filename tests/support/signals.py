"""Signals of processes that tests start."""

from __future__ import annotations

import signal


def reset_signals() -> None:
    """In a new process, end with signals as usual. A shell's background jobs, and those of `nohup`, ignore some."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
