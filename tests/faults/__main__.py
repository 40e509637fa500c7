"""`make faults`: every scenario, a line for each with what was injected and what was seen; `python -m tests.faults F3`.

A scenario is a test with the marker `fault`. What is too long for the default suite bears `heavy` as well.
"""

from __future__ import annotations

import os
import sys
import time

import pytest

SAMPLE = "(a sample"
"""What is tried of a scenario in `make test` says so; `make faults` tries all of it."""


class Lines:
    """Prints a line for each scenario, and the failures' tracebacks; ends with the two numbers."""

    def __init__(self, chosen: list[str]) -> None:
        self._chosen = set(chosen)
        self.passed = self.failed = 0
        self._begun = time.monotonic()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Only scenarios, in the order of their numbers; only those that were asked for, if any were."""
        items[:] = [
            item
            for item in items
            if (found := _fault(item))[0] and SAMPLE not in found[1] and (not self._chosen or found[0] in self._chosen)
        ]
        items.sort(key=lambda item: (_fault(item)[0][0] != "F", int(_fault(item)[0][1:])))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A scenario has been gone through."""
        said = dict(report.user_properties)
        if report.when == "call" or report.outcome != "passed":
            fine, skipped = report.outcome == "passed", report.outcome == "skipped"
            self.passed, self.failed = self.passed + fine, self.failed + (not fine and not skipped)
            seen = str(said.get("seen", "")) if fine else report.longreprtext
            end = "passed" if fine else "skipped" if skipped else "FAILED"
            print(
                f"{said.get('fault', report.nodeid)} injected: {said.get('injected')}; seen: {seen}; {end}", flush=True
            )

    def pytest_sessionfinish(self) -> None:
        """The last line."""
        print(f"in {time.monotonic() - self._begun:.0f} s")
        print(f"{self.passed} passed, {self.failed} failed", flush=True)


def _fault(item: pytest.Item) -> tuple[str, str]:
    marker = item.get_closest_marker("fault")
    return (marker.args[0], marker.args[1]) if marker else ("", "")


if __name__ == "__main__":
    os.environ["FAULTS"] = "all"
    lines = Lines(sys.argv[1:])
    options = ["tests/faults", "-p", "no:terminal", "-p", "no:cacheprovider", "-o", "timeout=7200", "-o", "addopts="]
    # Capturing file descriptors would keep what `Kills` says meanwhile, too.
    options += ["--capture=sys", "--import-mode=importlib", "--strict-markers"]
    status = pytest.main(options, plugins=[lines])
    sys.exit(1 if lines.failed or not lines.passed else int(status))
