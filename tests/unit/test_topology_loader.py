"""Pipelines are found in a folder's files, and a file that holds none says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import TopologyError
from sluice.topology import load_pipeline, load_pipelines
from sluice.topology.loader import load_file, load_module, pipeline_files

GOOD = '''"""Counts sales.

At length."""
from msgspec import Struct
from sluice import Pipeline
class Sale(Struct):
    shop: str
pipeline = Pipeline("{name}")
pipeline.stream("sales", value=Sale).group_by("shop").count(store="n")
'''


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_every_file_of_the_folder_is_a_pipeline_but_the_program_and_hidden_ones(tmp_path: Path) -> None:
    write(tmp_path, b=GOOD.format(name="two"), a=GOOD.format(name="one"), run="1/0", _shared="1/0", __init__="1/0")
    (tmp_path / "notes.txt").write_text("no pipeline")
    assert [file.name for file in pipeline_files(tmp_path)] == ["a.py", "b.py"]
    assert [pipeline.name for pipeline in load_pipelines(tmp_path)] == ["one", "two"]


def test_a_pipeline_knows_its_file_and_what_it_is_for(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, a=GOOD.format(name="one")), "one")
    assert pipeline.file == tmp_path / "a.py"
    assert pipeline.doc == "Counts sales.\n\nAt length."
    assert pipeline.nodes[0].at == "a.py:9"


def test_the_same_file_twice_is_one_module(tmp_path: Path) -> None:
    file = write(tmp_path, a=GOOD.format(name="one")) / "a.py"
    assert load_file(file) is load_file(file)
    assert load_module(file).Sale is load_module(tmp_path / "." / "a.py").Sale


def test_two_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    one = load_file(write(tmp_path / "x", json=GOOD.format(name="one")) / "json.py")
    two = load_file(write(tmp_path / "y", json=GOOD.format(name="two")) / "json.py")
    assert (one.name, two.name) == ("one", "two")
    import json

    assert json.loads("1") == 1  # the library's own module is not in the way


WRONG = {
    "no pipeline": ("x = 1", r"a\.py holds no pipeline\. Add: pipeline = Pipeline\(\"name\"\)"),
    "something else in its name": ("pipeline = 'orders'", r"a\.py holds no pipeline"),
    "an import that fails": (
        "import no_such_module",
        r"a\.py:1 cannot be imported: ModuleNotFoundError: .*no_such_module",
    ),
    "a mistake": ("x = 1\n1/0", r"a\.py:2 cannot be imported: ZeroDivisionError"),
    "no Python": ("pipeline =", r"a\.py cannot be imported: SyntaxError"),
    "a wrong topology": (
        GOOD.format(name="one").replace('"shop").c', '"shpo").c'),
        r"one: group_by at a\.py:9: 'shpo' reads shpo",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_is_wrong_is_named(wrong: str, tmp_path: Path) -> None:
    text, says = WRONG[wrong]
    file = write(tmp_path, a=text) / "a.py"
    with pytest.raises(TopologyError, match=says):
        load_file(file)
    # And it can be corrected: nothing of the failed try is left.
    file.write_text(GOOD.format(name="corrected") + "# longer, so that Python's cache takes it for a new one\n")
    if "cannot be imported" in says or "group_by" in says:
        assert load_file(file).name == "corrected"


def test_a_name_that_is_not_there_and_a_folder_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, a=GOOD.format(name="one"), b=GOOD.format(name="two"))
    with pytest.raises(TopologyError, match=r"no pipeline 'three' in .*\. There are: one, two\."):
        load_pipeline(tmp_path, "three")
    with pytest.raises(TopologyError, match=r"nowhere is not a folder\. Set SLUICE_PIPELINES"):
        load_pipelines(tmp_path / "nowhere")


def test_two_files_with_pipelines_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path, a=GOOD.format(name="one"), b=GOOD.format(name="one"))
    with pytest.raises(TopologyError, match=r"a\.py and b\.py both hold a pipeline 'one'"):
        load_pipelines(tmp_path)
