"""Progress of the demo: spinners on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

_OFTEN_S, _REMIND_S = 1.0, 5.0


class _Seconds(TextColumn):
    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        seconds = task.finished_time if task.finished else task.elapsed
        return Text(f"{seconds or 0.0:6.1f} s", style="cyan")


class Step:
    """A step in progress; `say` reports details, `conclude` the result."""

    def __init__(self, steps: Steps, title: str) -> None:
        self.title = title
        self._steps = steps
        self._said = ""
        self._said_at = time.monotonic()

    def say(self, detail: str) -> None:
        """Report a detail.

        If there is no terminal, print a new detail at most once a second, and the same detail every
        five seconds.
        """
        wait_s = _REMIND_S if detail == self._said else _OFTEN_S
        self._said = detail
        now = time.monotonic()
        if self._steps.live or now - self._said_at >= wait_s:
            self._said_at = now
            self._steps.show(self, detail)

    def conclude(self, result: str) -> None:
        """Set the detail of the step's last line."""
        self._said = result

    @property
    def detail(self) -> str:
        return self._said


class Steps:
    """Shows steps, of which several may run at the same time. Use it in a `with` statement.

    If there is no terminal, each line begins with the seconds since `began`, a time of the clock
    `time.monotonic`. By default, `began` is now.
    """

    def __init__(self, console: Console, began: float | None = None) -> None:
        self.console = console
        self._began = time.monotonic() if began is None else began
        self.live = console.is_terminal
        self._lock = threading.Lock()
        self._tasks: dict[Step, TaskID] = {}
        columns = (
            SpinnerColumn(finished_text="[green]✓[/]"),
            _Seconds(),
            TextColumn("{task.description}"),
        )
        self._progress = Progress(*columns, console=console)

    def __enter__(self) -> Steps:
        if self.live:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live:
            self._progress.stop()

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step until the block ends, with ✗ if it ends with an error."""
        step = Step(self, title)
        if self.live:
            self._tasks[step] = self._progress.add_task(escape(title), total=1)
        else:
            self._print("…", step, "")
        try:
            yield step
        except BaseException:
            self._finish(step, "[red]✗[/]")
            raise
        self._finish(step, "[green]✓[/]")

    def show(self, step: Step, detail: str) -> None:
        if self.live:
            self._progress.update(self._tasks[step], description=_line(step, detail))
        else:
            self._print("…", step, detail)

    def _finish(self, step: Step, mark: str) -> None:
        if self.live:
            done = int("✓" in mark)
            task, line = self._tasks[step], _line(step, step.detail)
            self._progress.update(task, description=line, completed=done)
            self._progress.stop_task(task)
        else:
            self._print(mark, step, step.detail)

    def _print(self, mark: str, step: Step, detail: str) -> None:
        # Steps that run at the same time print from different threads.
        with self._lock:
            seconds = time.monotonic() - self._began
            line = f"{seconds:6.1f} s  {mark} {_line(step, detail)}"
            self.console.print(line, soft_wrap=True)


def _line(step: Step, detail: str) -> str:
    line = escape(step.title)
    if detail:
        line += f"  [dim]{escape(detail)}[/]"
    return line
