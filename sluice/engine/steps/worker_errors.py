"""Reports errors that end a task of Spark's Python workers, where authors' functions run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sluice.errors import (
    AccessDenied,
    BrokersUnreachable,
    EngineError,
    RecordFailed,
    RegistryAway,
    SettingsError,
    SluiceError,
)
from sluice.plan import Job

_RAISED_BY_TASKS: Mapping[str, type[SluiceError]] = {
    "EngineError": EngineError,
    "RecordFailed": RecordFailed,
    "BrokersUnreachable": BrokersUnreachable,
    "AccessDenied": AccessDenied,
    "RegistryAway": RegistryAway,
    "SettingsError": SettingsError,
}
_RAISED = re.compile(rf"sluice\.errors\.({'|'.join(_RAISED_BY_TASKS)}): ([^\n]*)")
_CRASHED = "Python worker exited unexpectedly"
_TRACEBACK = re.compile(
    r"Fatal Python error: [^\n]*\n(.*?)\n\n(?:Extension modules|\s+at )",
    re.DOTALL,
)
_FRAME = re.compile(r'File "([^"\n]*)", line (\d+) in (\S+)')


def worker_error(job: Job, message: str) -> SluiceError | None:
    """Return the EngineError that a task raised, or an error if a Python worker has ended.

    Return None if Spark's message shows no such error.
    """
    raised = _RAISED.findall(message)
    if raised:
        # The last error in a traceback is the error that ended the task. Its text contains the
        # advice to the author.
        name, text = raised[-1]
        error = _RAISED_BY_TASKS[name](text)
        error.next_step = ""
        return error
    if _CRASHED not in message:
        return None
    steps = job.python_steps
    files = {step.at.partition(":")[0] for step in steps}
    place = _place(message, files)
    if place is not None:
        circumstance = f" at {place}"
    elif steps:
        circumstance = f" while it ran one of these steps: {', '.join(map(str, steps))}"
    else:
        circumstance = ", although the pipeline calls no Python functions there"
    return EngineError(
        f"A Python worker of {job.pipeline.name} ended{circumstance}.",
        next_step=(
            "Nothing from the batch was published. Look for a function that ends the process "
            "(os._exit), crashes in native code, or needs much memory; the kernel's log names a "
            "process that it killed for lack of memory. Correct the function, or give the machine "
            "more memory, and run again."
        ),
    )


def _place(message: str, files: set[str]) -> str | None:
    """Return the innermost line of a crash that Python reported, preferably in these files."""
    crash = _TRACEBACK.search(message)
    if crash is None:
        return None
    places: list[str] = []
    for path, line, function in _FRAME.findall(crash[1]):
        file = Path(path).name
        place = f"{file}:{line}, in {function}"
        if file in files:
            return place
        places.append(place)
    if places:
        return places[0]
    return None
