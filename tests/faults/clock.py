"""A wall clock for some processes, which a test can change while they run."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("clock.c")


@dataclass(frozen=True)
class SteppedClock:
    """The clock of every process that is started with `environment`."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.step(0)
        command = [
            "cc",
            "-shared",
            "-fPIC",
            "-O1",
            "-o",
            str(self._library),
            str(SOURCE),
            "-ldl",
            "-pthread",
        ]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            pytest.fail("A C compiler is missing: apt-get install gcc libc6-dev.")

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "STEPPED_CLOCK": str(self._shift)}

    def step(self, hours: float) -> None:
        """Set the clock of all its processes to the true time plus `hours`."""
        with self._shift.open("r+b" if self._shift.exists() else "wb") as file:
            file.write(int(hours * 3_600_000).to_bytes(8, "little", signed=True))

    @property
    def _library(self) -> Path:
        return self.folder / "clock.so"

    @property
    def _shift(self) -> Path:
        return self.folder / "clock.shift"
