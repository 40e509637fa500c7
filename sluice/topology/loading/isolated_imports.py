"""Import pipelines' files in separate processes, because a file may exit or never return.

A helper process, which has no threads, forks a child for each file. The calling process may have
threads. A fork copies only the thread that forks, so a child of the calling process could wait
forever for a lock that another thread holds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from sluice.errors import SluiceError, TopologyError, sentence
from sluice.support.processor_waits import waited_for_processor
from sluice.topology.expressions import import_parser
from sluice.topology.loading.pipeline_import import LOAD_SECONDS, load_file

_AT_ONCE = 8
_LONGER_IF_BUSY = 4.0
_GRACE_SECONDS = 2.0
"""How long a child may take, after its time limit, to report the line where it is stuck."""


def pipeline_name(file: Path, seconds: float) -> str:
    """Import a file and return its pipeline's name."""
    return load_file(file, seconds).name


class Outcome(msgspec.Struct, frozen=True):
    """The result of importing a file: the text that `load` has returned, or an error."""

    text: str = ""
    """By default, the name of the file's pipeline."""
    error: str = ""
    next_step: str = ""


def import_isolated(
    files: Sequence[Path],
    seconds: float = LOAD_SECONDS,
    load: Callable[[Path, float], str] = pipeline_name,
    start_seconds: float = 20.0,
) -> dict[Path, Outcome]:
    """Import every file in a separate process, eight at a time.

    A process that takes longer than `seconds` is killed. The time in which such a process waits for
    a processor does not count.

    `load`, a top-level function of a module, imports a file and returns a text, such as its
    pipeline's name. The helper process may take `start_seconds` to import that module.
    """
    if not files:
        return {}
    longest = start_seconds + (seconds + _GRACE_SECONDS) * (len(files) // _AT_ONCE + 1)
    # The helper process kills children that exceed the limit, so it needs longer only if the
    # machine is busy.
    longest *= _LONGER_IF_BUSY
    name = load.__name__
    program = f"from {__name__} import main; from {load.__module__} import {name}; main({name})"
    # With -P, a file in the current folder cannot take the place of a module.
    command = [sys.executable, "-P", "-c", program, str(seconds)]
    here = str(Path.cwd())
    path = os.pathsep.join([entry or here for entry in sys.path])
    absolute = [str(file.absolute()) for file in files]
    try:
        process = subprocess.run(
            [*command, *absolute],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=longest,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise TopologyError(
            f"The helper process that imports the pipelines' files failed: {sentence(error)}",
            next_step="Check that this machine has free memory and processes, then try again.",
        ) from None
    return dict(zip(files, msgspec.json.decode(process.stdout, type=list[Outcome]), strict=True))


@dataclass
class _Child:
    file: Path
    seconds: float
    load: Callable[[Path, float], str]
    pid: int = 0
    pipe: int = -1
    output: bytes = b""
    ends_at: float = field(default=0.0)
    waited: float = 0.0
    """The seconds by which `ends_at` has been delayed, because the child waited for a processor."""

    def start(self) -> None:
        self.pipe, writing = os.pipe()
        self.pid = os.fork()
        self.ends_at = time.monotonic() + self.seconds + _GRACE_SECONDS
        if self.pid == 0:
            # The child gets its own process group, so that processes started by the file are killed
            # with it.
            os.setpgid(0, 0)
            os.close(self.pipe)
            # The file's own output must not mix with the outcomes, which the helper process prints.
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            os.write(writing, msgspec.json.encode(_outcome(self.file, self.seconds, self.load)))
            # With sys.exit, threads that the file has started would keep the child alive.
            os._exit(0)
        # The parent closes its copy of the pipe's writing end, so that the pipe ends when the child
        # ends.
        os.close(writing)

    def read(self) -> bool:
        """Read the child's available output; return True at the end of the output."""
        data = os.read(self.pipe, 1 << 16)
        self.output += data
        return not data

    def is_overdue(self) -> bool:
        """Return whether the child has exceeded its time limit.

        Sets `ends_at` later if the child has waited for a processor.
        """
        if time.monotonic() < self.ends_at:
            return False
        waited = waited_for_processor(self.pid)
        self.ends_at += waited - self.waited
        self.waited = waited
        return time.monotonic() >= self.ends_at

    def end(self) -> Outcome:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(self.output, type=Outcome)
        if time.monotonic() >= self.ends_at:
            return Outcome(
                error=f"{self.file.name} is still being imported after {self.seconds:g} s."
            )
        # The output is not an outcome, so the child ended before it could write one.
        code = os.waitstatus_to_exitcode(status)
        how = f"with status {code}" if code >= 0 else f"by signal {-code}"
        return Outcome(error=f"{self.file.name} ended the process that imports it, {how}.")


def _outcome(file: Path, seconds: float, load: Callable[[Path, float], str]) -> Outcome:
    try:
        return Outcome(text=load(file, seconds))
    except SluiceError as error:
        return Outcome(error=error.detail, next_step=error.next_step)


def _import_all(
    files: Sequence[Path],
    seconds: float,
    load: Callable[[Path, float], str],
) -> dict[Path, Outcome]:
    waiting = [_Child(file, seconds, load) for file in files]
    running: dict[int, _Child] = {}
    results: dict[Path, Outcome] = {}
    while waiting or running:
        while waiting and len(running) < _AT_ONCE:
            child = waiting.pop(0)
            child.start()
            running[child.pipe] = child
        left = min(child.ends_at for child in running.values()) - time.monotonic()
        ready, _, _ = select.select(list(running), [], [], max(left, 0.0))
        done = {pipe for pipe in ready if running[pipe].read()}
        overdue = {pipe for pipe, child in running.items() if child.is_overdue()}
        for pipe in done | overdue:
            child = running.pop(pipe)
            results[child.file] = child.end()
    return results


def main(load: Callable[[Path, float], str]) -> None:
    """Run the helper process.

    Its arguments are the time limit and the files; it prints outcomes as JSON.
    """
    paths = [Path(argument) for argument in sys.argv[2:]]
    import_parser()
    results = _import_all(paths, float(sys.argv[1]), load)
    sys.stdout.buffer.write(msgspec.json.encode([results[path] for path in paths]))
