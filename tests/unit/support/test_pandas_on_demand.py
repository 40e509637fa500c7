"""Sluice imports no pandas, and pyarrow recognizes the pandas objects of an author who does."""

from __future__ import annotations

import subprocess
import sys

import pytest

AUTHOR = """
import sys
import pyarrow as pa
from sluice.testing import TopologyTestDriver

TopologyTestDriver
assert "pandas" not in sys.modules, "the test driver's import"
print(pa.array([1.0, float("nan")]).null_count)
assert "pandas" not in sys.modules, "making an array of a list"

import pandas as pd

# pyarrow takes NaN for a missing value only in objects of pandas.
print(pa.array(pd.Series([1.0, float("nan")])).null_count)
"""
BEFORE = """
import pandas as pd
from sluice.support.pandas_on_demand import import_pandas_on_demand
import_pandas_on_demand()
import pyarrow as pa
print(pa.array(pd.Series([float("nan")])).null_count)
"""


@pytest.mark.parametrize(("program", "printed"), [(AUTHOR, "0 1"), (BEFORE, "1")])
def test_an_array_of_a_series_has_nulls_for_nan(program: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (" ".join(done.stdout.split()), done.returncode) == (printed, 0), done.stderr
