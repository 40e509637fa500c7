"""Reports errors that end a task of Spark's Python workers, where most of an author's functions run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sluice.errors import AccessDenied, BrokersUnreachable, EngineError, RecordFailed
from sluice.plan import Job

_RAISED_BY_TASKS: Mapping[str, type[EngineError]] = {
    kind.__name__: kind for kind in (EngineError, RecordFailed, BrokersUnreachable, AccessDenied)
}
_RAISED = re.compile(rf"sluice\.errors\.({'|'.join(_RAISED_BY_TASKS)}): ([^\n]*)")
_CRASHED = "Python worker exited unexpectedly"
_TRACEBACK = re.compile(
    r"Fatal Python error: [^\n]*\n(.*?)\n\n(?:Extension modules|\s+at )",
    re.DOTALL,
)
_FRAME = re.compile(r'File "([^"\n]*)", line (\d+) in (\S+)')


def worker_error(job: Job, message: str) -> EngineError | None:
    """The error if Spark's message says that a task raised an EngineError, or a Python worker has ended; else None."""
    if raised := _RAISED.findall(message):
        # The last error in a traceback is the error that ended the task. Its text contains the
        # advice to the author.
        name, text = raised[-1]
        error = _RAISED_BY_TASKS[name](text)
        error.next_step = ""
        return error
    if _CRASHED not in message:
        return None
    steps = job.python_steps
    if (place := _place(message, {step.at.partition(":")[0] for step in steps})) is not None:
        where = f" at {place}"
    elif steps:
        where = f" while it ran one of these steps: {', '.join(map(str, steps))}"
    else:
        where = ", although the pipeline calls no Python functions there"
    return EngineError(
        f"A Python worker of {job.pipeline.name} ended{where}.",
        next_step="Nothing from the batch was published. Look for a function that ends the process "
        "(os._exit), crashes in native code, or needs much memory; the kernel's log names a "
        "process that it killed for lack of memory. Correct the function, or give the machine more "
        "memory, and run again.",
    )


def _place(message: str, files: set[str]) -> str | None:
    """The innermost line, preferably of these files, of a crash that Python has reported."""
    if (crash := _TRACEBACK.search(message)) is None or not (frames := _FRAME.findall(crash[1])):
        return None
    lines = [(Path(file).name, line, function) for file, line, function in frames]
    file, line, function = next((frame for frame in lines if frame[0] in files), lines[0])
    return f"{file}:{line}, in {function}"
