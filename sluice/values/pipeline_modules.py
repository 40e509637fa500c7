"""Imports a pipeline's file as a module, on the driver and in Spark's tasks."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import linecache
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from sluice.errors import EngineError

SCHEMAS = "schemas"
"""The folder beside pipelines with the schemas that `sluice schema pull` has written."""
_PREFIX = "sluice-pipeline:"


@dataclass(frozen=True)
class _Import:
    """A module imported from a file, and digests of the file and of what it imports and reads.

    These are the modules beside the file, and the schemas.
    """

    module: ModuleType
    digests: Mapping[Path, str]

    @property
    def is_current(self) -> bool:
        return all(_digest(file) == digest for file, digest in self.digests.items())


_searched: list[Path] = []
"""The folder of pipelines in which imports search for modules. The list has at most one folder."""
_libraries: list[Path] = []
"""The folder of libraries that `use_libraries` has added to Python's path. The list has at most one
folder."""
_imports: dict[Path, _Import] = {}
"""File → its last import by `load_module`."""


class DriverStarts(BaseException):
    """Raised in a Spark task where a script makes a TopologyTestDriver.

    It does not inherit from Exception, because an `except Exception` of the script must not catch
    it.
    """


def require_no_task() -> None:
    """In a Spark task, raise DriverStarts. The task imports the script only for its classes."""
    spark = sys.modules.get("pyspark")
    if spark is not None and spark.SparkFiles._is_running_on_worker:
        raise DriverStarts


def load_module(file: Path, name: str = "") -> ModuleType:
    """Import a pipeline's file, unless this process has already imported it with the same text.

    If the file has changed, or a module of its folder that it imports, the file is imported again
    as a new module. The earlier module stays valid for the pipelines that were made from it.

    The default name differs for every text, and no installed module can have it. A task imports a
    file under the name that the driver gave it, and raises EngineError if the file has changed
    since. A task imports a script only up to the line that makes a TopologyTestDriver: everything
    that the pipeline needs is defined before this line.
    """
    # If the name is known, this task has already loaded the file.
    if name in sys.modules:
        return sys.modules[name]
    file = file.absolute()
    last = _imports.get(file)
    if not name and last is not None and last.is_current:
        return last.module
    text = file.read_bytes()
    if is_name_of_file(name) and not name.endswith(_version(text)):
        raise EngineError(
            f"{file} has changed since the run loaded it.",
            next_step="Nothing from the batch was published. Run again: the next run loads the new "
            "file.",
        )
    # Replace dots: if the name contained a dot, pickle would look for a package.
    name = name or f"{_PREFIX}{file}{_edition(file)}".replace(".", "_") + _version(text)
    if name in sys.modules:
        return sys.modules[name]
    _forget_changed_modules(file)
    _search_in(file.parent)
    module = _imported(file, text, name)
    digests = {file: _digest_of(text)}
    for module_file in _modules_of(file.parent).values():
        digests[module_file] = _digest(module_file)
    for schema in (file.parent / SCHEMAS).glob("*.json"):
        digests[schema] = _digest(schema)
    _imports[file] = _Import(module, digests)
    return module


def is_name_of_file(name: str) -> bool:
    """Return whether a module has a name that `load_module` has given."""
    return name.startswith(_PREFIX)


def _imported(file: Path, text: bytes, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Without this call, tracebacks and fingerprints would use the lines of the earlier text.
    linecache.checkcache(str(file))
    try:
        # Python's cache of compiled files would mistake a new text for the old text
        # if both have the same size and were written in the same second.
        exec(compile(text, file, "exec"), vars(module))
    except DriverStarts:
        pass
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _search_in(folder: Path) -> None:
    """Let imports find the modules beside a pipeline's file, after all installed modules.

    Two folders may have modules of the same name, such as `helpers`. Therefore only one folder is
    searched, and Python forgets the modules of the previous folder. Pipelines that have imported
    such modules keep them.
    """
    if _searched == [folder]:
        return
    for earlier in _searched:
        if str(earlier) in sys.path:
            sys.path.remove(str(earlier))
        for name in _modules_of(earlier):
            del sys.modules[name]
    _searched.clear()
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        _searched.append(folder)
        importlib.invalidate_caches()


def use_libraries(folder: Path | None) -> None:
    """Let imports find a pipeline's own libraries before all installed packages.

    Two pipelines may have different versions of a library. Therefore only one folder is searched,
    and Python forgets the modules of the previous folder. Pipelines that have imported such modules
    keep them.
    """
    if _libraries == [folder] or (folder is None and not _libraries):
        return
    for earlier in _libraries:
        if str(earlier) in sys.path:
            sys.path.remove(str(earlier))
        for name, module in sys.modules.copy().items():
            if _is_below(module, earlier):
                del sys.modules[name]
    _libraries.clear()
    # In a run's driver, Python itself has already added the libraries to the path.
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        _libraries.append(folder)
    importlib.invalidate_caches()


@contextlib.contextmanager
def libraries_forgotten() -> Iterator[None]:
    """Forget a pipeline's own libraries after the block, which may import the pipeline's file.

    Airflow's own imports in the same process must not find these libraries.
    """
    try:
        yield
    finally:
        use_libraries(None)


def _is_below(module: ModuleType, folder: Path) -> bool:
    # Packages without an `__init__.py` have no file.
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(place and Path(place).is_relative_to(folder) for place in places)


def modules_beside(file: Path) -> list[Path]:
    """Return the Python files beside a pipeline's file, and those of packages beside it, sorted."""
    modules = [*file.parent.glob("*.py")]
    for package in file.parent.glob("*/__init__.py"):
        modules += package.parent.rglob("*.py")
    return sorted(module for module in modules if module != file)


def _version(text: bytes) -> str:
    return f"@{_digest_of(text)}"


def _edition(file: Path) -> str:
    """Return a suffix for the module's name.

    It changes when a module that the file imports changes.
    """
    last = _imports.get(file)
    if last is None:
        return ""
    digests: list[tuple[str, str]] = []
    for other in last.digests:
        if other != file:
            digests.append((str(other), _digest(other)))
    if digests:
        return f"@{_digest_of(repr(sorted(digests)).encode())}"
    return ""


def _digest(file: Path) -> str:
    """Return the digest of a file's text; an empty text if there is no such file."""
    try:
        return _digest_of(file.read_bytes())
    except OSError:
        return ""


def _digest_of(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _modules_of(folder: Path) -> dict[str, Path]:
    """Return the imported modules of a folder, such as `helpers`, with their files."""
    modules = {}
    # Iterate over a copy, because another thread's import can change the dictionary meanwhile.
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None)
        top = name.partition(".")[0]
        # There are thousands of modules, and making a path of each takes 10 ms.
        if not file or folder.name not in file or top == __name__.partition(".")[0]:
            continue
        if not Path(file).is_relative_to(folder):
            continue
        whole = folder.joinpath(*name.split("."))
        if Path(file) in (whole.with_suffix(".py"), whole / "__init__.py"):
            modules[name] = Path(file)
    return modules


def _forget_changed_modules(file: Path) -> None:
    """Forget the modules that the file has imported from its folder, if any of them has changed."""
    last = _imports.get(file)
    if last is None:
        return
    others = last.digests.keys() - {file}
    if all(_digest(other) == last.digests[other] for other in others):
        return
    for name, module_file in _modules_of(file.parent).items():
        del sys.modules[name]
        # Python's cache of compiled files would mistake a new text for the old text if both have
        # the same size and were written in the same second.
        with contextlib.suppress(OSError):
            Path(importlib.util.cache_from_source(str(module_file))).unlink()
    importlib.invalidate_caches()
