"""How `make test` distributes the tests over its processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import parallel
from tests.support.parallel import FIRST, TOGETHER, WAITING, Dealer

ROOT = Path(__file__).parents[3]


class Process:
    """A process of pytest-xdist, which notes the files whose tests it gets."""

    def __init__(self, number: int, tests: Sequence[str]) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.shutting_down = False
        self.waiting: list[int] = []
        self.files: list[str] = []
        self._tests = tests

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.waiting += numbers
        self.files += dict.fromkeys(self._tests[number].partition("::")[0] for number in numbers)

    def shutdown(self) -> None:
        self.shutting_down = True


def played(
    folder: Path, tests: Sequence[str], on_spark: Sequence[str], count: int
) -> tuple[list[Process], Dealer]:
    """The processes after they have run the tests in turn, one test each."""
    (folder / "on_spark").write_text("\n".join(on_spark))
    config: Any = SimpleNamespace(option=SimpleNamespace(), getvalue=lambda _: [f"{count}*popen"])
    dealer = Dealer(config, None, folder / "on_spark")
    processes: list[Any] = [Process(number, tests) for number in range(count)]
    for process in processes:
        dealer.add_node(process)
        dealer.add_node_collection(process, tests)
    dealer.schedule()
    while any(process.waiting for process in processes):
        for process in processes:
            if process.waiting:
                dealer.mark_test_complete(process, process.waiting.pop(0))
    return processes, dealer


def test_one_process_has_spark_and_two_begin_with_the_tests_that_wait(tmp_path: Path) -> None:
    waiting = [*WAITING[:3]]
    computing = [f"tests/unit/test_{number}.py" for number in range(9)]
    spark = "tests/engine/test_sql.py"
    tests = [
        f"{file}::test_{number}" for file in (*waiting, spark, *computing) for number in range(3)
    ]
    processes, dealer = played(
        tmp_path, tests, [test for test in tests if test.startswith(spark)], 4
    )
    first, second, third, fourth = (process.files for process in processes)
    assert [each[0] for each in (first, second, third, fourth)] == [
        spark,
        *waiting[:2],
        computing[0],
    ]
    assert waiting[2] in (second[1], third[1]), "the others compute meanwhile"
    assert sorted([*first, *second, *third, *fourth]) == sorted([*waiting, spark, *computing])
    assert all(process.shutting_down for process in processes)
    assert dealer.late_files() == []


def test_a_process_that_ends_long_after_the_others_is_named_with_its_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "LATE_S", -1.0)
    _, dealer = played(
        tmp_path, ["tests/a.py::test_1", "tests/b.py::test_1", "tests/b.py::test_2"], [], 2
    )
    assert [line.partition(". ")[0] for line in dealer.late_files()] == [
        "gw0 ended 0 s after the first process, with tests/a.py",
        "gw1 ended 0 s after the first process, with tests/b.py",
    ]


@pytest.mark.parametrize("start", dict.fromkeys([*FIRST, *TOGETHER]))
def test_each_file_with_a_place_of_its_own_exists(start: str) -> None:
    assert [*ROOT.glob(f"{start}*")] or (ROOT / start).is_dir()
