"""Import one pipeline's file, which defines the name `pipeline`."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from sluice.errors import SluiceError, TopologyError, error_text, sentence
from sluice.support.processor_waits import waited_for_processor
from sluice.topology.loading.import_advice import next_step as import_next_step
from sluice.topology.loading.pipeline_libraries import (
    installed_folder,
    libraries_of,
    missing_error,
    refused_options,
)
from sluice.topology.pipeline import Pipeline, pipelines_made_by
from sluice.values.pipeline_modules import load_module, use_libraries

LOAD_SECONDS = 10.0
"""Time limit for importing a pipeline's file, not counting waits for a processor.

Airflow allows 30 s for the file that makes all pipelines' DAGs.
"""


def load_file(file: Path, seconds: float = LOAD_SECONDS) -> Pipeline:
    """Import a file and return its pipeline. Raises TopologyError with the mistake and its line."""
    libraries = libraries_of(file)
    folder = installed_folder(libraries)
    use_libraries(folder)
    try:
        with pipelines_made_by(file) as made:
            module = import_file(file, seconds)
    except TopologyError as error:
        if folder is None and isinstance(error.__cause__, ImportError):
            if libraries is not None:
                raise missing_error(error, libraries, file) from error.__cause__
            refused = refused_options(file)
            if refused is not None:
                raise TopologyError(
                    f"{error.detail} {refused.detail}", next_step=refused.next_step
                ) from error.__cause__
        raise
    # If an unchanged file is loaded again, it is not executed again, so `made` is empty. The module
    # keeps the pipelines that its execution made, so that each load reports the same mistakes.
    made = vars(module).setdefault("__pipelines__", made)
    pipeline = getattr(module, "pipeline", None)
    if not isinstance(pipeline, Pipeline):
        others = [name for name, value in vars(module).items() if isinstance(value, Pipeline)]
        next_step = 'Add: pipeline = Pipeline("name").'
        if others:
            next_step = f"Rename the variable {others[0]} to pipeline."
        raise TopologyError(f"{file.name} defines no pipeline.", next_step=next_step)
    if others := [f"{other.name!r} at {other.at}" for other in made if other is not pipeline]:
        raise TopologyError(
            f"{file.name} defines more than the pipeline {pipeline.name!r}: {', '.join(others)}.",
            next_step="Move every other pipeline to its own file: "
            "only the pipeline in the variable named pipeline would run.",
        )
    pipeline.require_streams()
    pipeline.require_kept_stores()
    pipeline.doc = (module.__doc__ or "").strip()
    pipeline.file = file
    return pipeline


def import_file(file: Path, seconds: float = LOAD_SECONDS) -> ModuleType:
    """Import an author's file.

    Raises TopologyError, with the line, if the import fails or takes too long.

    The time limit applies only in the main thread, and does not interrupt C code.
    """
    try:
        with _at_most(seconds):
            return load_module(file)
    except (SluiceError, KeyboardInterrupt):
        raise
    except _TookTooLong as error:
        raise TopologyError(
            f"{_place(file, error)} is still being imported after {seconds:g} s.",
            next_step="Remove code that waits, such as network calls, from the file's top level.",
        ) from None
    # Catch BaseException, because the file may call sys.exit, which raises SystemExit.
    except BaseException as error:
        # The text of a SyntaxError repeats the file and line, and its `msg` does not.
        text = error.msg if isinstance(error, SyntaxError) else error_text(error)
        cause = f"{type(error).__name__}: {text}".rstrip(": ")
        raise TopologyError(
            f"{_place(file, error)} cannot be imported: {sentence(cause)}",
            next_step=import_next_step(error, file),
        ) from error


class _TookTooLong(BaseException):
    """An import took too long.

    Not an Exception, so that the author's `except Exception` does not catch it.
    """


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise _TookTooLong in the block after this time; do nothing outside of the main thread.

    The time in which other processes occupy the processors does not count.
    """
    # Python delivers signals, such as the alarm below, only to the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    begun, waited_before = time.monotonic(), waited_for_processor()

    def interrupt(_signal: int, _frame: object) -> None:
        waited = waited_for_processor() - waited_before
        rest = seconds + waited - (time.monotonic() - begun)
        if rest <= 0:
            raise _TookTooLong
        signal.setitimer(signal.ITIMER_REAL, max(rest, 0.001), 1.0)

    handler = signal.signal(signal.SIGALRM, interrupt) or signal.SIG_DFL
    # The alarm repeats every second, in case the author's code catches the
    # exception. An alarm that was set before is restored at the end.
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            # The earlier alarm gets at least 1 ms, because zero would switch it off.
            rest = max(left - (time.monotonic() - begun), 0.001)
            signal.setitimer(signal.ITIMER_REAL, rest, interval)


def _place(file: Path, error: BaseException) -> str:
    """Return the file, with the line of the error if it is known."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == file.absolute()]
    # After a SyntaxError, no frame of the traceback has the line, because the file was never run.
    # The error itself has the line.
    if (
        isinstance(error, SyntaxError)
        and error.filename
        and Path(error.filename) == file.absolute()
    ):
        lines.append(error.lineno)
    if lines:
        return f"{file.name}:{lines[-1]}"
    return file.name
