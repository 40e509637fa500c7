"""The Python sessions of pages print the output that the pages show."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import structlog

from sluice.testing import TopologyTestDriver, topology_test_driver
from tests.docs.pages import read, steps, write_files


@pytest.fixture(autouse=True)
def logged_as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other tests may have configured structlog, as Airflow does."""
    before = structlog.get_config()
    structlog.reset_defaults()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    monkeypatch.setattr(topology_test_driver, "log", structlog.get_logger())
    yield
    structlog.configure(**before)


@pytest.mark.parametrize(
    "page",
    [
        "docs/tutorial.md",
        "docs/how-to/processors.md",
        "docs/how-to/serdes.md",
        "docs/differences.md",
        "docs/formats.md",
        "docs/recipes.md",
    ],
)
def test_the_session_prints_its_output(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = read(page)
    write_files(text, tmp_path)
    monkeypatch.chdir(tmp_path)
    session: dict[str, Any] = {}
    differences = []
    with ExitStack() as drivers:
        for step in steps(text, "python"):
            known = {*session}
            with redirect_stdout(io.StringIO()) as printed:
                exec(step.commands, session)
            for name in session.keys() - known:
                if isinstance(session[name], TopologyTestDriver):
                    drivers.push(session[name])
            differences.append(step.differs(printed.getvalue()))
    if any(differences):
        pytest.fail("\n".join(filter(None, differences)), pytrace=False)
