"""Operations in processes of their own that kill themselves (-9) at a given call.

A test can so kill an operation of some milliseconds at any point, even between two statements. An
operation that is not killed tells the number of its calls.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
_COUNTED = tuple(str(ROOT / "sluice" / path) for path in ("state", "query", "kafka", "engine/run"))


def calls(
    operation: str, *arguments: str, dying_after: int = 0, environment: Mapping[str, str]
) -> int:
    """Run an operation in its own process.

    Returns the number of calls, or 0 if the process has killed itself.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")
    }
    asked = [dying_after, [operation, *arguments], inherited | dict(environment)]
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps(asked), file=server.stdin, flush=True)
    status, output, errors = json.loads(server.stdout.readline())
    if status == -signal.SIGKILL:
        return 0
    assert status == 0, errors[-3000:]
    return int(output.split()[-1])


@cache
def _server() -> subprocess.Popen[str]:
    """A process that forks for each operation.

    Imports take longer than the operations, so it imports them once.
    """
    command = [sys.executable, "-m", "tests.faults.dying"]
    server = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    atexit.register(server.stdin.close)  # then it ends
    return server


class Counter:
    """Counts calls into the modules of the operations, and kills the process at call number `last`."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.number = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_COUNTED):
            self.number += 1
            if self.number == self.last:
                os.kill(os.getpid(), signal.SIGKILL)


def move(ledger: str, pipeline: str, worker: str, address: str) -> Callable[[], object]:
    """Move a worker to a state server."""
    from sluice.commands.worker_arguments import place_of
    from sluice.operations.moves import move as move_worker
    from sluice.state.ledger.ledger import Ledger

    place = place_of(pipeline, int(worker), address, tls=False)
    return lambda: move_worker(Ledger.open(ledger), place)


def retain(ledger: str, pipeline: str, keep: str) -> Callable[[], object]:
    """Remove all snapshots but the newest `keep`."""
    from sluice.operations.snapshot_retention import retain as forget
    from sluice.state.ledger.ledger import Ledger

    return lambda: forget(Ledger.open(ledger), pipeline, int(keep), 0.0)


def switch(ledger: str, pipeline: str, generation: str) -> Callable[[], object]:
    """Make a generation the current one, as the last step of promoting it."""
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.model import GenerationRef

    return lambda: Ledger.open(ledger).generations.promote(
        GenerationRef(pipeline, int(generation)), note="promoted"
    )


def compare(ledger: str, store: str, before: str, after: str) -> Callable[[], object]:
    """Compare two snapshots of a store."""
    import asyncio

    from sluice.query import AsOf, Reader
    from sluice.query.differences import compare as differences
    from sluice.state.ledger.ledger import Ledger

    async def run() -> None:
        reader = Reader(Ledger.open(ledger))
        (info,) = [one for one in await reader.catalogue.stores() if one.name == store]
        first, second = [
            await reader.catalogue.pin(info, AsOf(snapshot)) for snapshot in (before, after)
        ]
        await differences(reader, first, second)

    return lambda: asyncio.run(run())


def redrive(bootstrap: str, pipeline: str, topic: str) -> Callable[[], object]:
    """Re-drive a pipeline's dead letters."""
    from sluice.kafka.dead_letter_topic import DeadLetterFilter
    from sluice.kafka.redrive import redrive as write_again

    return lambda: write_again(
        {"bootstrap.servers": bootstrap}, pipeline, [topic], DeadLetterFilter()
    )


def rebuild(action: str, pipeline: str) -> Callable[[], object]:
    """Replay a pipeline of `SLUICE_PIPELINES` into a new generation, or promote it, with a Spark session."""
    from sluice.operations.rebuild import Rebuild
    from sluice.plan import load_plan
    from sluice.settings import settings
    from sluice.testing.topology_test_driver import shared_session

    job = load_plan(settings().pipelines, pipeline).job
    rebuilding = Rebuild(shared_session(), job, settings())
    return {"replay": rebuilding.replay, "promote": rebuilding.promote}[action]


def repartition(pipeline: str) -> Callable[[], object]:
    """Spread a pipeline's state over the workers in its file."""
    from sluice.operations.repartition import repartition as spread
    from sluice.plan import load_plan
    from sluice.settings import settings

    job = load_plan(settings().pipelines, pipeline).job
    return lambda: spread(job, settings())


def run(last: int, name: str, *arguments: str) -> None:
    """Run an operation, and kill the process at call number `last`."""
    operations: dict[str, Callable[..., Callable[[], object]]] = {
        "move": move, "retain": retain, "switch": switch, "compare": compare, "redrive": redrive, "rebuild": rebuild,
        "repartition": repartition,
    }  # fmt: skip
    operation = operations[name](*arguments)
    counter = Counter(last)
    threading.setprofile(counter)
    sys.setprofile(counter)
    operation()
    sys.setprofile(None)
    print(counter.number)


def run_in_a_fork(
    last: int, operation: list[str], environment: dict[str, str]
) -> tuple[int, str, str]:
    """The exit status, negative for a signal, and what the process has printed to its output and its errors."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            _run_and_exit(last, operation, environment, output, errors)
        _, status = os.waitpid(child, 0)
        for file in (output, errors):
            file.seek(0)
        return os.waitstatus_to_exitcode(status), output.read(), errors.read()


def _run_and_exit(
    last: int, operation: list[str], environment: dict[str, str], output: IO[str], errors: IO[str]
) -> None:
    os.dup2(output.fileno(), sys.stdout.fileno())
    os.dup2(errors.fileno(), sys.stderr.fileno())
    os.environ.clear()
    os.environ.update(environment)
    status = 1
    try:
        run(last, *operation)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    import sluice.commands.worker_arguments
    import sluice.kafka.redrive
    import sluice.operations.moves
    import sluice.operations.repartition
    import sluice.operations.snapshot_retention
    import sluice.plan
    import sluice.query.differences  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(run_in_a_fork(*json.loads(line))), flush=True)
