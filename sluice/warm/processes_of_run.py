"""The processes of a run: a session of the operating system, which ends as a whole."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_ROUNDS = 20


def end_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent, the process with id `parent`, ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the call.
    if os.getppid() != parent:
        os._exit(1)


def be_killed_first() -> None:
    """Let the system kill this process and its children before others if memory runs out.

    Otherwise, it might kill the JVM, and with it all runs.
    """
    # A container may forbid this.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def kill_session(session: int) -> None:
    """Kill all processes of a session, and those that they start meanwhile."""
    for _ in range(_ROUNDS):
        members = _members(session)
        if not members:
            return
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _members(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    members: list[int] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        # The process may have ended since it was listed.
        with suppress(OSError):
            pid = int(entry.name)
            if os.getsid(pid) == session and not _has_ended(pid):
                members.append(pid)
    return members


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended, although its parent has not asked for its status yet."""
    # The process's name is in parentheses, and may itself contain spaces and parentheses.
    state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    return state in (b"Z", b"X")
