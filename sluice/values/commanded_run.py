"""A run that a command gives to a warm driver before the command knows the pipeline."""

from __future__ import annotations

from pathlib import Path

import msgspec

COMMANDED = "SLUICE_COMMANDED"
"""The environment variable with a `CommandedRun`, as JSON."""
BEGUN, DECLINED = "begun", "declined"


class CommandedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that a command leaves to the driver, to save the command's imports.

    The driver refuses a paused pipeline, and notes who runs it.
    """

    file: str
    """The file of the pipeline, as the command has found it."""
    action: str
    detail: str
    answer: str
    """The path of the file in which the driver writes its answer."""

    def reply(self, answer: str) -> None:
        """Answer that the run has begun, or that the command must start it in another way."""
        Path(self.answer).write_text(answer)

    @property
    def replied(self) -> str:
        """The driver's answer; empty if the driver ended without one."""
        try:
            return Path(self.answer).read_text()
        except FileNotFoundError:
            return ""
