"""Wheels of a tiny library, so that tests need no package index."""

from __future__ import annotations

import zipfile
from pathlib import Path

_WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_packages(archive: Path, version: str) -> None:
    """Write an archive of installed packages with the library, which needs no pip."""
    # A wheel has the same layout.
    write_wheel(archive.parent, version).rename(archive)


def write_wheel(folder: Path, version: str, requires: str = "", name: str = "tinylib") -> Path:
    """Write a wheel whose module has the function `version` and the constant VERSION."""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    if requires:
        metadata += f"Requires-Dist: {requires}\n"
    code = f'VERSION = "{version}"\n\n\ndef version(_: object) -> str:\n    return VERSION\n'
    with zipfile.ZipFile(wheel, "w") as written:
        written.writestr(f"{name}.py", code)
        written.writestr(f"{info}/METADATA", metadata)
        written.writestr(f"{info}/WHEEL", _WHEEL)
        written.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")
    return wheel
