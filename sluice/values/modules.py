"""Import a pipeline's file as a module, on the driver and in Spark's tasks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_module(file: Path, name: str = "") -> ModuleType:
    """Import a pipeline's file once per process, by default under a name that no installed module can have."""
    # If the name contained a dot, pickle would look for a package.
    name = name or f"sluice-pipeline:{file.absolute()}".replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
