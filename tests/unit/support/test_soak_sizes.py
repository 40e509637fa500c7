"""The soak measures folders while running processes delete files in them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.soak.sizes import mb_in


def test_files_and_folders_may_be_deleted_while_they_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kept", "deleted"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(1_000_000))
    scandir = os.scandir

    def deleted_meanwhile(folder: str | int) -> object:
        # `rmtree` lists the folder by its descriptor.
        if not isinstance(folder, int) and Path(folder).name == "deleted":
            shutil.rmtree(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", deleted_meanwhile)
    assert mb_in(tmp_path, tmp_path / "none") == 1
