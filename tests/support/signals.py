"""Signals of processes that tests start."""

from __future__ import annotations

import signal


def reset_signals() -> None:
    """In a new process, end with signals as usual.

    A shell's background jobs, and those of `nohup`, ignore some.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def interrupt_on_sigterm() -> None:
    """Treat SIGTERM like Ctrl-C, so that all that this process has started is stopped.

    Pytest would take SystemExit for the failure of a test, and go on with the next one.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
