"""The packages of the running Python that a pipeline's own libraries must not replace.

These are the packages that Sluice's runs import: the dependencies of Sluice except Airflow, and all
of their dependencies.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

_SLUICE = "sluice-streams"
_EXTRAS = ("client", "state", "spark", "registry", "msk")
_WHEEL = "Wheel-Version: 1.0\nGenerator: sluice\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True)
class KeptPackage:
    """An installed package that stays as it is."""

    name: str
    """The normalized name."""
    version: str
    metadata: str

    @property
    def info_folder(self) -> str:
        """Return the name of the folder with the package's metadata."""
        return f"{self.name.replace('-', '_')}-{self.version}.dist-info"

    def write_stand_in(self, folder: Path) -> Path:
        """Write a wheel that has this package's metadata, but no modules.

        pip installs it in place of the package, so that it downloads no other copy and no other
        version.
        """
        wheel = folder / f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as written:
            written.writestr(f"{self.info_folder}/METADATA", self.metadata)
            written.writestr(f"{self.info_folder}/WHEEL", _WHEEL)
            written.writestr(f"{self.info_folder}/RECORD", "")
        return wheel


@cache
def kept_packages() -> tuple[KeptPackage, ...]:
    """Return the installed packages that runs import, sorted by name."""
    kept: dict[str, KeptPackage] = {}
    waiting: list[tuple[str, tuple[str, ...]]] = [(_SLUICE, _EXTRAS)]
    visited: set[tuple[str, str]] = set()
    while waiting:
        name, extras = waiting.pop()
        wanted = [(name, extra) for extra in ("", *extras)]
        new = [each for each in wanted if each not in visited]
        visited.update(new)
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            # Only another platform or version of Python needs this package.
            continue
        metadata = _metadata(installed)
        if metadata is not None:
            kept[name] = KeptPackage(name, installed.version, metadata)
        for _, extra in new:
            waiting += _requirements(installed, extra)
    return tuple(kept[name] for name in sorted(kept))


def _metadata(installed: Distribution) -> str | None:
    return installed.read_text("METADATA") or installed.read_text("PKG-INFO")


def _requirements(installed: Distribution, extra: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the packages that an installed package needs for an extra, with their own extras."""
    # Imported here, because most pipelines have no requirements.
    from packaging.requirements import Requirement

    needed: list[tuple[str, tuple[str, ...]]] = []
    for text in installed.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None:
            is_needed = not extra
        else:
            is_needed = requirement.marker.evaluate({"extra": extra})
        if is_needed:
            needed.append((normalized(requirement.name), tuple(sorted(requirement.extras))))
    return needed


def normalized(name: str) -> str:
    """Return a package's name as package indexes compare it."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)
