"""Keeps pyarrow from importing pandas in a process that does not use pandas."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


def import_pandas_on_demand() -> None:
    """Import pyarrow so that it does not import pandas unless this process imports pandas itself.

    pyarrow imports pandas to recognize pandas objects, at the latest when it first makes an array
    of a list. This takes 0.2 s and 25 MB. But as long as nothing else has imported pandas, there
    are no such objects.
    """
    if "pandas" in sys.modules or any(isinstance(each, _PandasFinder) for each in sys.meta_path):
        return
    finder = _PandasFinder()
    sys.meta_path.insert(0, finder)
    import pyarrow as pa

    # pyarrow looks for pandas only once, and from now on believes that pandas is missing.
    pa.array([])
    finder.hides = False


class _PandasFinder(MetaPathFinder):
    """Hides pandas at first.

    Later finds pandas, and tells pyarrow once pandas has been imported.
    """

    hides = True

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "pandas":
            return None
        if self.hides:
            raise ModuleNotFoundError("pandas is hidden from pyarrow", name=name)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                import pyarrow as pa

                # pyarrow needs pandas for this attribute, so pyarrow looks for it again.
                _ = pa.lib._pandas_api.pd

            loader.exec_module = execute_and_tell
        return spec
