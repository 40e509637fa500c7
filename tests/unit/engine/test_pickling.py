"""An author's function runs in another process, which has not imported the pipeline's file."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.engine.steps.pickling import Pickled
from sluice.topology.author_functions import with_key
from sluice.values.function_wrappers import Not
from sluice.values.pipeline_modules import load_module

FILE = """
def large(amount):
    return amount > 3

def is_key(key, amount):
    return key == amount
"""

CALL = """
import pickle, sys
for pickled in sys.argv[1:]:
    print(pickle.loads(bytes.fromhex(pickled)).value('k', 5))
"""


@pytest.mark.parametrize(
    ("name", "negated", "result"), [("large", False, "True"), ("is_key", True, "True")]
)
def test_a_function_without_the_key_finds_its_module(
    tmp_path: Path, name: str, negated: bool, result: str
) -> None:
    file = tmp_path / "conditions.py"
    file.write_text(FILE)
    function = with_key("here", getattr(load_module(file), name), "value")
    pickled = pickle.dumps(Pickled.of(Not(function) if negated else function))
    done = subprocess.run(
        [sys.executable, "-c", CALL, pickled.hex()], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == result


SCRIPT = """
import pickle
from enum import Enum
from msgspec import Struct, json
from sluice.engine.steps.pickling import Pickled

class Kind(Enum):
    SALE = "sale"

class Amount(Struct):
    cents: int = 0
    kind: Kind = Kind.SALE

def doubled(key, cents):
    amount = json.decode(b'{"cents": %d, "kind": "sale"}' % (2 * cents), type=Amount)
    assert amount.kind is Kind.SALE
    return amount

if __name__ == "__main__":
    doubled("k", 1)
    print(pickle.dumps(Pickled.of(doubled)).hex())
"""


def test_a_function_of_a_script_has_the_scripts_structs_and_enums(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    pickled = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=True
    ).stdout.strip()
    done = subprocess.run(
        [sys.executable, "-c", CALL, pickled], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "Amount(cents=10, kind=<Kind.SALE: 'sale'>)"


UNGUARDED = """
import pickle
import sys
from msgspec import Struct
from sluice.engine.steps.pickling import Pickled

class Amount(Struct):
    cents: int = 0

def doubled(key, cents):
    return Amount(cents=2 * cents)

def tripled(key, cents):
    return Later(cents=3 * cents)

if sys.argv[1:] == ["pickle"]:
    class Later(Struct):
        cents: int = 0

    print(pickle.dumps(Pickled.of(doubled)).hex(), pickle.dumps(Pickled.of(tripled)).hex())
    sys.exit()

from sluice.testing import TopologyTestDriver

TopologyTestDriver(None).pipe("amounts", 1)
"""

IN_TASK = "from pyspark import SparkFiles; SparkFiles._is_running_on_worker, SparkFiles._root_directory = True, '/'"


def test_a_task_runs_a_script_up_to_its_driver(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(UNGUARDED)
    pickled = subprocess.run(
        [sys.executable, str(file), "pickle"], capture_output=True, text=True, check=True
    ).stdout
    calls = [sys.executable, "-c", f"{IN_TASK}\n{CALL}", *pickled.split()]
    done = subprocess.run(calls, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "Amount(cents=10)", "tripled has failed"
    assert (
        "up to its first TopologyTestDriver, and find no class Later there. Define Later above"
        in done.stderr
    )
