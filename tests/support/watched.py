"""Runs commands while watching what other users of the machine could see of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil


def run_watched(commands: Sequence[str], variables: Mapping[str, str], log: Path) -> str:
    """Run commands of `sluice`, which must succeed. Returns their output and the arguments of all their processes."""
    seen = ""
    for command in commands:
        with log.open("w+") as output:
            words = [sys.executable, "-m", "sluice", *command.split()]
            process = psutil.Popen(words, env=dict(variables), stdout=output, stderr=output)
            while process.poll() is None:
                with suppress(psutil.Error):
                    seen += str(
                        [each.cmdline() for each in (process, *process.children(recursive=True))]
                    )
                time.sleep(0.1)
            output.seek(0)
            text = output.read()
        assert process.returncode == 0, f"{command}: {text}"
        seen += text
    return seen
