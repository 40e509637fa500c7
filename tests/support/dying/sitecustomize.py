"""Kills the group of this process (-9) before or after a call that DIES_AT names.

Python imports this module when it starts, if its folder is in PYTHONPATH. So a command and the
drivers that it starts die at the same point of the product's code, as if the power had failed.
DIES_AT is `MODULE:FUNCTION:before` or `MODULE:CLASS.METHOD:after`. The file DIED exists afterwards.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any


class _Dying(Loader):
    """Loads a module, and replaces one of its functions."""

    def __init__(self, loader: Loader, function: str, moment: str) -> None:
        self._loader = loader
        self._function = function
        self._moment = moment

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        *classes, name = self._function.split(".")
        owner: Any = module
        for each in classes:
            owner = getattr(owner, each)
        original = getattr(owner, name)

        def dies(*arguments: Any, **named: Any) -> Any:
            if self._moment == "after":
                original(*arguments, **named)
            Path(os.environ["DIED"]).touch()
            os.killpg(os.getpgid(0), signal.SIGKILL)

        setattr(owner, name, dies)


class _Finder(MetaPathFinder):
    def __init__(self, module: str, function: str, moment: str) -> None:
        self._module = module
        self._function = function
        self._moment = moment

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Dying(spec.loader, self._function, self._moment)
        return spec


if point := os.environ.get("DIES_AT"):
    sys.meta_path.insert(0, _Finder(*point.split(":")))
