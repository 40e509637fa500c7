"""A process that kills itself (-9) after so many calls into Sluice's state: `-m tests.faults.dying CALLS WHAT ...`.

So a step that takes milliseconds dies wherever it can die, also between two statements. 0 calls: it lives, and prints
how many calls there were.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_COUNTED = tuple(str(ROOT / "sluice" / part) for part in ("state", "server"))


def calls(what: str, *arguments: str, dying_after: int = 0, environment: Mapping[str, str]) -> int:
    """How many calls it took in a process of its own; 0 if it has killed itself before it was done."""
    command = [sys.executable, "-m", "tests.faults.dying", str(dying_after), what, *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    given = inherited | dict(environment)
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGKILL:
        return 0
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.split()[-1])


class Counter:
    """Counts calls into the state's modules, and ends the process at one of them."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.number = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_COUNTED):
            self.number += 1
            if self.number == self.last:
                os.kill(os.getpid(), signal.SIGKILL)


def move(ledger: str, pipeline: str, worker: str, address: str) -> Callable[[], object]:
    """Moving a worker to a state server."""
    from sluice.commands.servers import place_of
    from sluice.remote.server.moves import move as move_worker
    from sluice.state.ledger.ledger import Ledger

    place = place_of(pipeline, int(worker), address, tls=False)
    return lambda: move_worker(Ledger.open(ledger), place)


def retain(ledger: str, pipeline: str, keep: str) -> Callable[[], object]:
    """Forgetting all snapshots but the newest."""
    from sluice.snapshot_retention import retain as forget
    from sluice.state.ledger.ledger import Ledger

    return lambda: forget(Ledger.open(ledger), pipeline, int(keep), 0.0)


def main(last: str, what: str, *arguments: str) -> None:
    """Do it, and die at the call."""
    doing: dict[str, Callable[..., Callable[[], object]]] = {"move": move, "retain": retain}
    do = doing[what](*arguments)
    counter = Counter(int(last))
    threading.setprofile(counter)
    sys.setprofile(counter)
    do()
    sys.setprofile(None)
    print(counter.number)


if __name__ == "__main__":
    main(*sys.argv[1:])
