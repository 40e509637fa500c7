"""Clients are made anew when the files that they have read were replaced."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.kafka import replaced_files
from sluice.kafka.replaced_files import LastingAdmin, ReplacedFiles
from tests.support.certificates import make_certificate


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaced_files, "_SETTLED_S", 0.0)


@pytest.fixture
def kafka(tmp_path: Path) -> dict[str, str]:
    """Settings with a certificate and a key that do not belong together, as far as nobody uses them."""
    names = {"ssl.certificate.location": "client.crt", "ssl.key.location": "client.key"}
    for name in names.values():
        (tmp_path / name).write_text("old")
    return {setting: str(tmp_path / name) for setting, name in names.items()}


def overwrite(path: Path) -> None:
    path.write_text("newer")


def move_over(path: Path) -> None:
    """Replace the file by another of the same size and time, as a tool that keeps the times does."""
    other, status = path.with_suffix(".new"), path.stat()
    other.write_text("new")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)


def link_elsewhere(path: Path) -> None:
    """Point a link to another file, as Kubernetes replaces the files of a secret."""
    target = path.with_suffix(".v2")
    target.write_text("new")
    link = path.with_suffix(".link")
    link.symlink_to(target)
    link.replace(path)


@pytest.mark.parametrize("replace", [overwrite, move_over, link_elsewhere])
def test_a_replaced_file_is_noticed(kafka: dict[str, str], replace: Callable[[Path], None]) -> None:
    files = ReplacedFiles(kafka)
    assert not files.were_replaced()
    replace(Path(kafka["ssl.certificate.location"]))
    assert files.were_replaced()
    assert not ReplacedFiles(kafka).were_replaced()


def test_a_file_that_is_missing_for_a_moment_is_being_replaced(kafka: dict[str, str]) -> None:
    files, path = ReplacedFiles(kafka), Path(kafka["ssl.key.location"])
    path.unlink()
    assert not files.were_replaced()
    path.write_text("new")
    assert files.were_replaced()


def test_files_that_are_still_being_written_are_waited_for(
    kafka: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaced_files, "_SETTLED_S", 60.0)
    files = ReplacedFiles(kafka)
    Path(kafka["ssl.certificate.location"]).write_text("newer")
    assert not files.were_replaced()


def test_settings_without_files_are_never_replaced() -> None:
    assert not ReplacedFiles({"bootstrap.servers": "127.0.0.1:1"}).were_replaced()


def test_a_client_is_made_anew_as_soon_as_the_new_files_fit(tmp_path: Path) -> None:
    make_certificate(tmp_path, "client")
    make_certificate(tmp_path, "other")
    certificate, key = tmp_path / "client.crt", tmp_path / "client.key"
    kafka = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SSL",
        "ssl.certificate.location": str(certificate),
        "ssl.key.location": str(key),
    }
    admin = LastingAdmin(kafka)
    first = admin.client()
    assert admin.client() is first
    (tmp_path / "other.crt").replace(certificate)
    assert admin.client() is first, "the key does not fit the certificate yet"
    assert not ReplacedFiles(kafka).were_replaced()
    (tmp_path / "other.key").replace(key)
    second = admin.client()
    assert second is not first
    assert admin.client() is second
