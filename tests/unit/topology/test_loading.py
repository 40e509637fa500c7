"""Loading pipelines from the files of a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.engine.run.shipped_files import modules_archive
from sluice.errors import EngineError, TopologyError
from sluice.topology import Pipeline, load_pipeline, load_pipelines, nodes
from sluice.topology.loading.declared_names import declared_names
from sluice.topology.loading.pipeline_files import files_naming, pipeline_files
from sluice.topology.loading.pipeline_import import load_file
from sluice.values.pipeline_modules import load_module, modules_beside

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


def test_all_files_except_routes_and_hidden_ones_are_pipelines(tmp_path: Path) -> None:
    write(
        tmp_path,
        b=GOOD.format(name="two"),
        a=GOOD.format(name="one"),
        one_routes="1/0",
        _shared="1/0",
        __init__="1/0",
    )
    (tmp_path / "notes.txt").write_text("no pipeline")
    assert [file.name for file in pipeline_files(tmp_path)] == ["a.py", "b.py"]
    assert [pipeline.name for pipeline in load_pipelines(tmp_path).pipelines] == ["one", "two"]


@pytest.mark.timeout(30)
def test_pipes_and_folders_are_no_pipelines_and_a_link_without_its_file_is_reported(
    tmp_path: Path,
) -> None:
    write(tmp_path, a=GOOD.format(name="one"))
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "link.py").symlink_to(tmp_path / "gone.py")
    assert load_pipeline(tmp_path, "one").name == "one"
    loaded = load_pipelines(tmp_path)
    assert [pipeline.name for pipeline in loaded.pipelines] == ["one"]
    assert [broken.file.name for broken in loaded.broken] == ["link.py"]


def test_a_pipeline_has_its_file_and_docstring(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, a=GOOD.format(name="one")), "one")
    assert pipeline.file == tmp_path / "a.py"
    assert pipeline.doc == "Counts sales.\n\nAt length."
    assert pipeline.nodes[0].at == "a.py:9"


def test_the_same_file_twice_is_one_module(tmp_path: Path) -> None:
    file = write(tmp_path, a=GOOD.format(name="one")) / "a.py"
    assert load_file(file) is load_file(file)
    assert load_module(file).Sale is load_module(tmp_path / "." / "a.py").Sale


SECOND = GOOD.replace("shop: str", "shop: str\n    city: str").replace(
    'group_by("shop")', 'group_by("city")'
)


def source_of(pipeline: Pipeline) -> nodes.Source:
    (source,) = (node for node in pipeline.nodes if isinstance(node, nodes.Source))
    return source


def test_a_changed_file_is_loaded_anew_and_the_earlier_pipeline_stays_valid(tmp_path: Path) -> None:
    name = GOOD.format(name="one")
    first = load_pipeline(write(tmp_path, a=name), "one")
    text = name.replace(
        'store="n"', 'store="m"'
    )  # of the same size, and probably in the same second
    assert [
        node.name
        for node in load_pipeline(write(tmp_path, a=text), "one").nodes
        if node.name in "nm"
    ] == ["m"]
    second = load_pipeline(write(tmp_path, a=SECOND.format(name="one")), "one")
    assert source_of(second).fields.keys() == {"shop", "city"}
    with pytest.raises(TopologyError, match=r"a\.py:10 cannot be imported: SyntaxError"):
        load_pipeline(write(tmp_path, a=name + "1 +"), "one")
    again = load_pipeline(write(tmp_path, a=name), "one")
    assert (set(source_of(first).fields), set(source_of(again).fields)) == ({"shop"}, {"shop"})
    contract: Any = source_of(first).serde.contract
    assert getattr(sys.modules[contract.__module__], contract.__qualname__) is contract


def test_a_changed_module_of_the_folder_is_imported_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shared_of_a").mkdir()
    write(
        tmp_path / "shared_of_a",
        __init__="from shared_of_a.names import TOPIC",
        names="TOPIC = 'one'",
    )
    file = write(
        tmp_path,
        a="import shared_of_a\n" + GOOD.format(name="one").replace('"sales"', "shared_of_a.TOPIC"),
    )
    first = load_pipeline(file, "one")
    assert load_pipeline(file, "one") is first
    assert first.topics == ["one"]
    write(tmp_path / "shared_of_a", names="TOPIC = 'two'")
    assert load_pipeline(file, "one").topics == ["two"]
    assert load_pipeline(file, "one") is load_pipeline(file, "one")


def test_a_task_does_not_take_a_changed_file_for_the_one_of_its_run(tmp_path: Path) -> None:
    file = write(tmp_path, a=GOOD.format(name="one")) / "a.py"
    name = load_module(file).__name__
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.delitem(sys.modules, name)
    assert load_module(file, name).__name__ == name
    monkeypatch.delitem(sys.modules, name)
    file.write_text(SECOND.format(name="one"))
    with pytest.raises(
        EngineError, match=r"a\.py has changed since the run loaded it\. .* Run again"
    ):
        load_module(file, name)


def test_two_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    one = load_file(write(tmp_path / "x", json=GOOD.format(name="one")) / "json.py")
    two = load_file(write(tmp_path / "y", json=GOOD.format(name="two")) / "json.py")
    assert (one.name, two.name) == ("one", "two")
    import json

    assert json.loads("1") == 1  # the standard library's module is not shadowed


WRONG = {
    "no pipeline": ("x = 1", r"a\.py defines no pipeline\. Add: pipeline = Pipeline\(\"name\"\)"),
    "something else in its name": ("pipeline = 'orders'", r"a\.py defines no pipeline"),
    "a pipeline of another name": (
        "from sluice import Pipeline\nsales = Pipeline('sales')",
        r"a\.py defines no pipeline\. Rename the variable sales to pipeline\.",
    ),
    "a second pipeline": (
        GOOD.format(name="one") + "other = Pipeline('two')",
        r"a\.py defines more than the pipeline 'one': 'two' at a\.py:10\. Move every other pipeline to",
    ),
    "a variable that gets a second pipeline": (
        GOOD.format(name="one")
        + "def make(): return Pipeline('two')\nkept = [make()]\npipeline = make()\n"
        "pipeline.stream('t', value=Sale)",
        r"a\.py defines more than the pipeline 'two': 'one' at a\.py:8, 'two' at a\.py:10\.",
    ),
    "a pipeline that reads nothing": (
        "from sluice import Pipeline\npipeline = Pipeline('idle')",
        r"idle at a\.py:2 reads nothing\. Read a topic: pipeline\.stream\(",
    ),
    "a pipeline of a global table": (
        "from sluice import Pipeline\npipeline = Pipeline('idle')\npipeline.global_table('t', value=str)",
        r"idle at a\.py:2 reads only global tables\. Read a topic",
    ),
    "an import that fails": (
        "import no_such_module",
        r"a\.py:1 cannot be imported: ModuleNotFoundError: .*no_such_module'\. "
        r"Install the package, or correct its name",
    ),
    "a store without a name": (
        GOOD.format(name="one").replace('store="n"', ""),
        r"a\.py:9 .*'store'\. Write count\(store=\.\.\.\)\. Optional: on_error\.",
    ),
    "a topic without a contract": (
        GOOD.format(name="one").replace(", value=Sale", ""),
        r"a\.py:9 .*'value'\. Write stream\(topic, value=\.\.\.\)\. Optional: key, ",
    ),
    "a window without its advance": (
        "from sluice import hopping\nhopping('1 minute')",
        r"a\.py:2 .*'advance'\. Write hopping\(size, advance=\.\.\.\)\. Optional: grace, zone, offset\.",
    ),
    "an output at least once": (
        GOOD.format(name="one").replace(
            ".group_by", ".through('t', delivery='at_least_once').group_by"
        ),
        r"a\.py:9 .*'delivery'\. Remove delivery=: every output is written exactly once\.",
    ),
    "a method that is misspelt": (
        GOOD.format(name="one").replace("group_by", "groupby"),
        r"a\.py:9 .*'Stream' object has no attribute 'groupby'\. Did you mean group_by\?",
    ),
    "an aggregation of records without groups": (
        GOOD.format(name="one").replace('.group_by("shop")', ""),
        r"a\.py:9 .*no attribute 'count'\. Group the records first: group_by\(\.\.\.\)\.count\(\.\.\.\)\.",
    ),
    "a method of grouped streams on a grouped table": (
        GOOD.format(name="one")
        + "pipeline.table('shops', value=Sale).group_by('shop').aggregate_batch(int, sum, store='total')",
        r"a\.py:10 .*no attribute 'aggregate_batch'\. aggregate_batch is a method of GroupedStream\. "
        r"Did you mean aggregate\?",
    ),
    "a method of grouped streams on cogrouped streams": (
        GOOD.format(name="one")
        + "sales = pipeline.stream('more', value=Sale).group_by('shop').cogroup(n='count(*)')\n"
        "sales.aggregate_batch(int, store='total')",
        r"a\.py:11 .*no attribute 'aggregate_batch'\. aggregate_batch is a method of GroupedStream\. "
        r"Did you mean aggregate\?",
    ),
    "a processor used as a stream": (
        GOOD.format(name="one")
        + "class Keep:\n def init(self, context): pass\n def process(self, record): pass\n"
        + "pipeline.stream('t', value=Sale).process(Keep).to('out')",
        r"a\.py:13 .*'Processed' object has no attribute 'to'\. Take one of its outputs first: \.output",
    ),
    "a call of the author's own with wrong arguments": (
        "def add(a, b): pass\nadd(1)",
        r"a\.py:2 cannot be imported: TypeError: .*'b'\.$",
    ),
    "a mistake": ("x = 1\n1/0", r"a\.py:2 cannot be imported: ZeroDivisionError"),
    "an error whose text fails": (
        "class Odd(TypeError):\n def __str__(self): return 1 / 0\nraise Odd",
        r"a\.py:3 cannot be imported: Odd: \(its __str__ fails\)\.$",
    ),
    "an error whose text has no UTF-8": (
        "raise ValueError('\\udc80')",
        r"a\.py:1 cannot be imported: ValueError: \?$",
    ),
    "no Python": (
        "pipeline =",
        r"a\.py:1 cannot be imported: SyntaxError: invalid syntax\. Correct this line, or go back",
    ),
    "an end of the process": (
        "import sys\nsys.exit('no')",
        r"a\.py:2 cannot be imported: SystemExit: no\.",
    ),
    "an import that waits": (
        "import time\ntime.sleep(60)",
        r"a\.py:2 is still being imported after 1 s\. Remove code that waits",
    ),
    "a name with a space": (
        GOOD.format(name="my sales"),
        r"'my sales' at a\.py:8 is not a valid pipeline name",
    ),
    "the name of another DAG": (
        GOOD.format(name="sluice_retention"),
        r"'sluice_retention' at a\.py:8 is the name of one of Sluice's own DAGs",
    ),
    "a wrong topology": (
        GOOD.format(name="one").replace('"shop").c', '"shpo").c'),
        r"one: group_by at a\.py:9: 'shpo' reads unknown fields: shpo",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_invalid_file_is_named(wrong: str, tmp_path: Path) -> None:
    text, says = WRONG[wrong]
    file = write(tmp_path, a=text, helpers="") / "a.py"
    (tmp_path / "parts").mkdir()
    with pytest.raises(TopologyError, match=says):
        # On a busy machine, every import may take long.
        load_file(file, 1 if "waits" in wrong else 60)
    # A corrected file loads: nothing of the failed attempt remains.
    file.write_text(GOOD.format(name="corrected"))
    assert load_file(file, 60).name == "corrected"


def test_missing_pipelines_and_folders(tmp_path: Path) -> None:
    write(tmp_path, a=GOOD.format(name="one"), b=GOOD.format(name="two"))
    with pytest.raises(
        TopologyError, match=r"no pipeline 'three' in .*\. Known pipelines: one, two\."
    ):
        load_pipeline(tmp_path, "three")
    with pytest.raises(TopologyError, match=r"nowhere is not a folder\. Set SLUICE_PIPELINES"):
        load_pipelines(tmp_path / "nowhere")


def test_duplicate_pipeline_names_are_rejected(tmp_path: Path) -> None:
    write(tmp_path, a=GOOD.format(name="one"), b=GOOD.format(name="one"))
    with pytest.raises(TopologyError, match=r"a\.py and b\.py both define a pipeline 'one'"):
        load_pipeline(tmp_path, "one")


UNUSABLE = {
    "syntax": ("def", "syntax.py:1 cannot be imported: SyntaxError"),
    "missing": ("import no_such_module", "missing.py:1 cannot be imported: ModuleNotFoundError"),
    "ends": ("import sys\nsys.exit(3)", "ends.py:2 cannot be imported: SystemExit: 3."),
    "dies": ("import os\nos._exit(3)", "dies.py ended the process that imports it, with status 3."),
    "crashes": (
        "import os\nos.kill(os.getpid(), 11)",
        "crashes.py ended the process that imports it, by signal 11.",
    ),
    "raises": ("raise BaseException('x')", "raises.py:1 cannot be imported: BaseException: x."),
    "waits": ("import time\ntime.sleep(600)", "waits.py:2 is still being imported after 5 s."),
    "clings": (
        "import time\nwhile True:\n    try:\n        time.sleep(600)\n    except BaseException:\n        pass",
        "clings.py is still being imported after 5 s.",
    ),
    "spaced": (GOOD.format(name="a b"), "'a b' at spaced.py:8 is not a valid pipeline name."),
    "reserved": (
        GOOD.format(name="produce_sample_orders"),
        "'produce_sample_orders' at reserved.py:8 is the name",
    ),
    "twice": (GOOD.format(name="same"), "again.py and twice.py both define a pipeline 'same'."),
    "again": (GOOD.format(name="same"), "again.py and twice.py both define a pipeline 'same'."),
    "nothing": ("x = 1", "nothing.py defines no pipeline."),
}


def test_a_broken_file_leaves_the_others_alone(tmp_path: Path) -> None:
    write(tmp_path, **{name: text for name, (text, _) in UNUSABLE.items()})
    write(tmp_path, good=GOOD.format(name="fraud"), other=GOOD.format(name="iot"))
    loaded = load_pipelines(tmp_path, seconds=5)
    assert [pipeline.name for pipeline in loaded.pipelines] == ["fraud", "iot"]
    said = {broken.file.stem: broken.error.detail for broken in loaded.broken}
    assert said.keys() == UNUSABLE.keys()
    assert {name: said[name][: len(expected)] for name, (_, expected) in UNUSABLE.items()} == {
        name: expected for name, (_, expected) in UNUSABLE.items()
    }
    names = {broken.file.stem: broken.name for broken in loaded.broken}
    assert (names["twice"], names["spaced"], names["waits"]) == ("same", "a b", "waits")


def test_a_pipeline_is_found_without_importing_other_files(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    ran.mkdir()
    for name in ("fraud", "iot"):
        touch = f"import pathlib\npathlib.Path({str(ran / name)!r}).touch()\n"
        write(tmp_path, **{f"of_{name}": touch + GOOD.format(name=name)})
    write(tmp_path, broken="def", waits="import time; time.sleep(600)" + GOOD.format(name="waits"))
    assert load_pipeline(tmp_path, "fraud").name == "fraud"
    assert [file.name for file in ran.iterdir()] == ["fraud"]


def test_a_name_in_parts_is_found(tmp_path: Path) -> None:
    parts = GOOD.format(name="two").replace('"two"', '"t" "wo"')
    write(tmp_path, a=GOOD.format(name="one"), b=parts)
    assert files_naming(tmp_path, "one") == [tmp_path / "a.py"]
    assert files_naming(tmp_path, "two") == []
    assert load_pipeline(tmp_path, "two").file == tmp_path / "b.py"


def test_a_computed_name_is_found(tmp_path: Path) -> None:
    computed = GOOD.replace('"{name}"', "'fra' + 'ud'")
    write(tmp_path, a=computed, b="import sys; sys.exit()", c=GOOD.format(name="iot"))
    assert load_pipeline(tmp_path, "fraud").file == tmp_path / "a.py"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('pipeline = Pipeline("a")', ("a",)),
        ('pipeline = sluice.Pipeline(name="a", workers=2)', ("a",)),
        (
            "pipeline = Pipeline(\n    'a'\n",
            ("a",),
        ),  # invalid Python: the name is found in the text
        ('# Pipeline("a")', ()),
        ("pipeline = Pipeline(NAME)", ()),
        ("\0", ()),
    ],
)
def test_the_name_in_a_files_text(tmp_path: Path, text: str, names: tuple[str, ...]) -> None:
    assert declared_names(write(tmp_path, a=text) / "a.py") == names


def test_a_mistake_in_a_pipelines_file_is_reported(tmp_path: Path) -> None:
    write(tmp_path, a=GOOD.format(name="one") + "def", my=GOOD.format(name="m y"))
    with pytest.raises(TopologyError, match=r"a\.py:10 cannot be imported: SyntaxError"):
        load_pipeline(tmp_path, "one")
    with pytest.raises(TopologyError, match=r"'m y' at my\.py:8 is not a valid pipeline name"):
        load_pipeline(tmp_path, "my")


def test_an_earlier_alarm_still_goes_off(tmp_path: Path) -> None:
    went_off: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, _: went_off.append(number))
    before = signal.setitimer(signal.ITIMER_REAL, 0.3)  # pytest's timer
    try:
        load_file(write(tmp_path, a=GOOD.format(name="one")) / "a.py")
        assert not went_off
        signal.sigtimedwait([], 1)
        assert went_off
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *before)


def test_modules_beside_a_pipeline_are_its_own(tmp_path: Path) -> None:
    for team, factor in (("shop", 2), ("stock", 3)):
        folder = tmp_path / team
        (folder / "parts").mkdir(parents=True)
        (folder / "sluice.toml").write_text("")
        (folder / "_helpers.py").write_text(f"FACTOR = {factor}")
        (folder / "parts" / "__init__.py").write_text("from _helpers import FACTOR")
        (folder / f"{team}.py").write_text(
            "from parts import FACTOR\n" + GOOD.format(name=team) + "\nassert FACTOR\n"
        )
    loaded = load_pipelines(tmp_path)
    assert [file.error for file in loaded.broken] == []
    for team, factor in (("shop", 2), ("stock", 3), ("shop", 2)):
        file = tmp_path / team / f"{team}.py"
        assert factor == load_module(file).FACTOR, team
    (tmp_path / "shop" / "_helpers.py").write_text("FACTOR = 22")
    assert load_module(tmp_path / "shop" / "shop.py").FACTOR == 22
    names = [path.name for path in modules_beside(tmp_path / "shop" / "shop.py")]
    assert names == ["_helpers.py", "__init__.py"]


def test_an_archive_of_modules_is_named_by_their_hash(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("")
    assert modules_archive(tmp_path / "shop.py") is None
    (tmp_path / "_helpers.py").write_text("FACTOR = 1")
    first = modules_archive(tmp_path / "shop.py")
    (tmp_path / "_helpers.py").write_text("FACTOR = 2")
    second = modules_archive(tmp_path / "shop.py")
    assert first is not None
    assert second is not None
    assert first.name != second.name
    assert second.parent.stat().st_mode & 0o77 == 0, "nobody else can write the archive"
    code = (
        f"import sys; sys.path.insert(0, {str(second)!r}); import _helpers; print(_helpers.FACTOR)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert said.stdout == "2\n"
