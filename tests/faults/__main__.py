"""Runs fault scenarios and prints a line for each, with the injected fault and the result: `python -m tests.faults F3`.

A scenario is a test with the marker `fault`. Scenarios that take minutes also have the marker
`heavy`.
"""

from __future__ import annotations

import sys
import time

import pytest

from tests.support.signals import interrupt_on_sigterm

SAMPLE = "(a sample"
"""Part of the description of scenarios that only `make test` runs. `make faults` runs the complete scenario instead."""


class Lines:
    """A pytest plugin that prints a line for each scenario and, at the end, how many passed and failed."""

    def __init__(self, chosen: list[str]) -> None:
        self._chosen = set(chosen)
        self.passed = self.failed = 0
        self._begun = time.monotonic()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the scenarios, or those of the command line, sorted by number."""
        items[:] = [
            item
            for item in items
            if (fault := _fault(item))[0]
            and SAMPLE not in fault[1]
            and (not self._chosen or fault[0] in self._chosen)
        ]
        items.sort(key=lambda item: (_fault(item)[0][0] != "F", int(_fault(item)[0][1:])))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the line of a scenario."""
        properties = dict(report.user_properties)
        if report.when == "call" or report.outcome != "passed":
            passed, skipped = report.outcome == "passed", report.outcome == "skipped"
            self.passed, self.failed = (
                self.passed + passed,
                self.failed + (not passed and not skipped),
            )
            result = str(properties.get("result", "")) if passed else report.longreprtext
            end = "passed" if passed else "skipped" if skipped else "FAILED"
            fault, injected = properties.get("fault", report.nodeid), properties.get("injected")
            print(f"{fault} injected: {injected}; result: {result}; {end}", flush=True)

    def pytest_sessionfinish(self) -> None:
        """Print the duration and the numbers."""
        print(f"in {time.monotonic() - self._begun:.0f} s")
        print(f"{self.passed} passed, {self.failed} failed", flush=True)


def _fault(item: pytest.Item) -> tuple[str, str]:
    marker = item.get_closest_marker("fault")
    return (marker.args[0], marker.args[1]) if marker else ("", "")


if __name__ == "__main__":
    interrupt_on_sigterm()
    lines = Lines(sys.argv[1:])
    options = [
        "tests/faults",
        "-p",
        "no:terminal",
        "-p",
        "no:cacheprovider",
        "-o",
        "timeout=7200",
        "-o",
        "addopts=",
    ]
    # Capturing file descriptors would also hide the progress that `Kills` prints.
    options += ["--capture=sys", "--import-mode=importlib", "--strict-markers"]
    status = pytest.main(options, plugins=[lines])
    sys.exit(1 if lines.failed or not lines.passed else int(status))
