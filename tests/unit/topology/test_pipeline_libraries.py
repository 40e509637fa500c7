"""Pipelines with libraries of their own: two of them with two versions of one library."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.errors import SettingsError, TopologyError
from sluice.orchestration.cached_facts import facts_of_folder
from sluice.orchestration.dag_facts import facts_text
from sluice.settings import settings
from sluice.topology import drawing, load_pipeline, load_pipelines
from sluice.topology.loading.isolated_imports import import_isolated
from sluice.topology.loading.pipeline_connections import libraries_of_name
from sluice.topology.loading.pipeline_libraries import libraries_of
from sluice.topology.loading.run_options import run_options
from sluice.values.pipeline_modules import use_libraries
from tests.support.tiny_wheels import write_packages

PIPELINE = """
import tinylib
from sluice import Pipeline

pipeline = Pipeline("{name}")
texts = pipeline.stream("{name}", value=str).map_values(tinylib.version, returns=str)
texts.to("{name}_" + tinylib.VERSION)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The pipelines `old` and `new`, with two versions of a library that is not installed yet."""
    folder = tmp_path / "pipelines"
    folder.mkdir()
    lines = []
    for name, version in (("old", "1.0"), ("new", "2.0")):
        write_packages(folder / f"{name}.zip", version)
        (folder / f"{name}.py").write_text(PIPELINE.format(name=name))
        lines.append(f'[pipelines.{name}]\nrequirements = "{name}.zip"\n')
    (folder / "sluice.toml").write_text("".join(lines))
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    settings.cache_clear()
    yield folder
    settings.cache_clear()
    use_libraries(None)


def install(folder: Path, name: str) -> Path:
    libraries = libraries_of(folder / f"{name}.py")
    assert libraries is not None
    return libraries.build(print)


def test_each_pipeline_gets_its_own_version(folder: Path) -> None:
    for name in ("old", "new"):
        install(folder, name)
    loaded = load_pipelines(folder)
    assert [broken.error for broken in loaded.broken] == []
    outputs = {pipeline.name: drawing.text(pipeline) for pipeline in loaded.pipelines}
    assert [*outputs] == ["new", "old"]
    assert "new_2.0" in outputs["new"]
    assert "old_1.0" in outputs["old"]


def test_modules_of_the_pipeline_before_are_forgotten(folder: Path) -> None:
    for name in ("old", "new"):
        install(folder, name)
    load_pipeline(folder, "old")
    old = sys.modules["tinylib"]
    load_pipeline(folder, "new")
    assert sys.modules["tinylib"] is not old
    use_libraries(None)
    assert "tinylib" not in sys.modules
    assert not any("libraries" in path for path in sys.path)


def test_an_import_without_the_libraries_says_how_to_install_them(folder: Path) -> None:
    install(folder, "old")
    (broken,) = load_pipelines(folder).broken
    assert broken.name == "new"
    assert broken.error.detail == (
        "new.py:2 cannot be imported: ModuleNotFoundError: No module named 'tinylib'. "
        f"The libraries of {folder / 'new.zip'} are not installed on this host."
    )
    assert broken.error.next_step == "Install them: sluice libraries build new."


def test_requirements_that_are_missing_are_told(folder: Path) -> None:
    (folder / "new.zip").unlink()
    (folder / "old.zip").unlink()
    broken = load_pipelines(folder).broken
    assert [each.error.detail for each in broken] == [
        f"{folder / name} cannot be read: No such file or directory."
        for name in ("new.zip", "old.zip")
    ]
    assert facts_of_folder(folder, settings().home)[0] == []


def test_an_import_of_a_pipeline_that_may_not_have_libraries_says_so(folder: Path) -> None:
    install(folder, "new")
    file = folder / "sluice.toml"
    file.write_text(f"{file.read_text()}\n[limits]\nrequirements = ['old']\n")
    with pytest.raises(TopologyError, match="No module named 'tinylib'") as caught:
        load_pipeline(folder, "new")
    assert caught.value.detail.endswith(
        "the pipeline new has requirements, but only old may have its own libraries."
    )
    assert "ask the platform's team" in caught.value.next_step
    with pytest.raises(SettingsError, match="only old may have its own libraries"):
        libraries_of_name(folder, "new", settings().home)
    assert libraries_of_name(folder, "old", settings().home) is not None


def test_an_error_of_another_kind_stays_as_it_is(folder: Path) -> None:
    (folder / "new.py").write_text("1 / 0\n")
    with pytest.raises(TopologyError, match=r"ZeroDivisionError: division by zero\.$") as caught:
        load_pipeline(folder, "new")
    assert "libraries" not in str(caught.value)


def test_a_file_that_imports_its_library_later_needs_none_to_be_drawn(folder: Path) -> None:
    text = "from sluice import Pipeline\npipeline = Pipeline('new')\n"
    text += "pipeline.stream('t', value=str).group_by_key().count(store='n')\n"
    (folder / "new.py").write_text(text)
    assert load_pipeline(folder, "new").name == "new"


def test_airflows_processor_starts_the_installation(folder: Path) -> None:
    file = folder / "new.py"
    first = import_isolated([file], load=facts_text)[file]
    assert "are not installed on this host" in first.error
    libraries = libraries_of(file)
    assert libraries is not None
    begun = time.monotonic()
    while not libraries.is_built and time.monotonic() - begun < 120:
        time.sleep(0.1)
    then = import_isolated([file], load=facts_text)[file]
    assert then.error == ""
    assert "new_2.0" in then.text


def test_a_dag_stays_while_changed_requirements_are_installed(folder: Path, tmp_path: Path) -> None:
    for name in ("old", "new"):
        install(folder, name)
    # Facts of files that have just changed are not kept.
    long_ago = time.time() - 60
    for file in tmp_path.rglob("*"):
        os.utime(file, (long_ago, long_ago))
    home = settings().home
    facts, broken = facts_of_folder(folder, home)
    assert not broken
    (folder / "new.zip").write_bytes(b"no archive")
    libraries = libraries_of(folder / "new.py")
    assert libraries is not None
    with libraries.folder.parent.with_suffix(".lock").open("a") as lock:
        # As if a process were installing them.
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert facts_of_folder(folder, home) == (facts, [])
    facts_of_folder(folder, home)
    begun = time.monotonic()
    while not libraries.failure and time.monotonic() - begun < 120:
        time.sleep(0.1)
    (failed,) = facts_of_folder(folder, home)[1]
    assert "Its libraries cannot be installed: " in failed.error.detail


def test_a_failed_installation_is_told_and_not_repeated_at_once(folder: Path) -> None:
    (folder / "new.zip").write_bytes(b"no archive")
    libraries = libraries_of(folder / "new.py")
    assert libraries is not None
    with pytest.raises(Exception, match="cannot be unpacked"):
        libraries.build(print)
    outcome = import_isolated([folder / "new.py"], load=facts_text)[folder / "new.py"]
    assert "Its libraries cannot be installed: " in outcome.error
    assert "cannot be unpacked" in outcome.error
    assert outcome.next_step == f"Correct {folder / 'new.zip'}."
    assert not libraries.log.exists(), "no process has been started"


def test_a_teams_requirements_are_in_its_folder(folder: Path) -> None:
    team = folder / "team"
    team.mkdir()
    (team / "sluice.toml").write_text('[defaults]\nrequirements = "all.txt"\n')
    options = run_options(folder, team / "stock.py", "stock")
    assert options.requirements == str(team / "all.txt")
    (team / "sluice.toml").write_text(
        '[defaults]\nrequirements = "all.txt"\n[pipelines.stock]\nrequirements = ""\n'
    )
    assert run_options(folder, team / "stock.py", "stock").libraries(folder) is None
