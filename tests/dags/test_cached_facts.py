"""Airflow parses pipelines from facts that are kept until something that a file reads changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sluice.orchestration import cached_facts
from sluice.orchestration.cached_facts import cached_facts_of, facts_of_folder
from sluice.orchestration.dag_facts import DagFacts
from sluice.topology.loading.isolated_imports import Outcome, import_isolated

FILE = """
import json, os
from pathlib import Path
from sluice import Pipeline
from shared_names import STORE

topic = json.loads(Path(__file__).with_name("topic.json").read_text())
pipeline = Pipeline("words", workers=1, schedule=os.getenv("WORDS_SCHEDULE", "on_records"))
pipeline.table(topic, value=str, store=STORE)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline's file that reads an installed module, a file and an environment variable, all settled long ago."""
    folder, installed = tmp_path / "pipelines", tmp_path / "installed"
    folder.mkdir()
    installed.mkdir()
    monkeypatch.syspath_prepend(str(installed))
    write(folder / "words.py", FILE)
    write(folder / "topic.json", '"words"')
    write(installed / "shared_names.py", "STORE = 'newest'")
    return folder


def write(file: Path, text: str, seconds_ago: float = 60) -> None:
    file.write_text(text)
    at = time.time() - seconds_ago
    os.utime(file, (at, at))


def facts(folder: Path) -> DagFacts:
    (only,), broken = facts_of_folder(folder, folder.parent)
    assert broken == []
    return only


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were imported."""
    names: list[str] = []

    def count(
        files: Sequence[Path], seconds: float, load: Callable[[Path, float], str]
    ) -> dict[Path, Outcome]:
        names.extend(file.name for file in files)
        return import_isolated(files, seconds, load)

    monkeypatch.setattr(cached_facts, "import_isolated", count)
    return names


def test_a_file_is_imported_again_only_when_something_that_it_reads_has_changed(
    folder: Path, imports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = facts(folder)
    assert (first.topics, first.assets, first.schedule) == (
        ("words",),
        ("words.store.newest",),
        "on_records",
    )
    assert facts(folder) == first == cached_facts_of(folder, folder.parent, "words")
    assert imports == ["words.py"]

    write(folder / "topic.json", '"letters"')
    assert facts(folder).topics == ("letters",)
    write(folder.parent / "installed" / "shared_names.py", "STORE = 'newest_word'", 50)
    assert facts(folder).assets == ("words.store.newest_word",)
    monkeypatch.setenv("WORDS_SCHEDULE", "@daily")
    assert facts(folder).schedule == "@daily"
    write(folder / "words.py", FILE.replace('"words"', '"texts"'), 40)
    assert facts(folder).name == "texts"
    assert imports == ["words.py"] * 5
    assert facts(folder).name == "texts"
    assert len(imports) == 5


def test_a_file_that_is_being_changed_is_not_kept(folder: Path, imports: list[str]) -> None:
    write(
        folder / "topic.json", '"letters"', seconds_ago=-600
    )  # still to come, however slow this machine is
    for _ in range(2):
        assert facts(folder).topics == ("letters",)
    assert imports == ["words.py"] * 2


def test_facts_of_another_version_and_old_or_damaged_facts_are_found_again(
    folder: Path, imports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = facts(folder)
    monkeypatch.setattr(cached_facts, "_edition", lambda: "another version")
    assert facts(folder) == first
    clock = time.time() + 3_601
    monkeypatch.setattr("sluice.orchestration.cached_facts.time.time", lambda: clock)
    assert cached_facts_of(folder, folder.parent, "words") is None
    (entry,) = (folder.parent / "dags").iterdir()
    assert entry.stat().st_mode & 0o077 == 0
    entry.write_text("{")
    assert facts(folder) == first
    assert imports == ["words.py"] * 3


def test_a_broken_file_is_reported_each_time_and_takes_no_other_away(
    folder: Path, imports: list[str]
) -> None:
    write(folder / "broken.py", "from sluice import Pipeline\nimport nothing_like_this\n")
    write(folder / "twin.py", FILE)
    write(folder / "alone.py", FILE.replace('"words"', '"alone"'))
    for _ in range(2):
        (only,), broken = facts_of_folder(folder, folder.parent)
        assert only.name == "alone"
        assert [(file.file.name, file.error.detail) for file in broken] == [
            (
                "broken.py",
                "broken.py:2 cannot be imported: ModuleNotFoundError: No module named 'nothing_like_this'.",
            ),
            ("twin.py", "twin.py and words.py both define a pipeline 'words'."),
            ("words.py", "twin.py and words.py both define a pipeline 'words'."),
        ]
    assert imports.count("broken.py") == 2
    assert imports.count("alone.py") == 1


def test_a_folder_that_cannot_be_written_to_keeps_nothing(folder: Path, imports: list[str]) -> None:
    (folder.parent / "dags").write_text("a file where the folder should be")
    assert facts(folder) == facts(folder)
    assert len(imports) == 2
