"""How long a process has waited for a processor. A time limit does not count this time."""

from __future__ import annotations

from pathlib import Path

_NANOSECONDS = 1_000_000_000


def waited_for_processor(process: int | str = "self") -> float:
    """Return the seconds in which the process's main thread could have run, but had no processor.

    Returns 0.0 if the system does not tell, or if the process has ended.
    """
    try:
        # The numbers are: time on a processor, time of waiting for a processor, and the number of
        # turns.
        numbers = Path(f"/proc/{process}/schedstat").read_text().split()
        return int(numbers[1]) / _NANOSECONDS
    except (OSError, ValueError, IndexError):
        return 0.0
