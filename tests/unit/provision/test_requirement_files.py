"""The files that decide what pip installs, in all spellings that pip accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import SettingsError
from sluice.provision.requirement_files import contents


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "team").mkdir()
    (tmp_path / "tiny.whl").write_bytes(b"the wheel")
    (tmp_path / "more.txt").write_bytes(b"more==1")
    (tmp_path / "source").mkdir()
    return tmp_path


def read(folder: Path, text: str | bytes) -> list[bytes]:
    """Return the contents of the files that a file with this text names."""
    file = folder / "requirements.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [*contents(file)][1:]


@pytest.mark.parametrize(
    "line",
    [
        "./tiny.whl",
        "tiny.whl",
        "./tiny.whl[extra]",
        "./tiny.whl ; python_version > '3'",
        "./tiny.whl;python_version>'3'",
        "./tiny.whl  # the tiny one",
        "./tiny.whl --hash=sha256:00",
        "./tiny.whl \\\r\n    --hash=sha256:00",
        "FOLDER/tiny.whl",
        "file://FOLDER/tiny.whl",
        "tiny @ file://FOLDER/tiny.whl",
        "tiny@file://FOLDER/tiny.whl#sha256=00",
        "tiny @ file://FOLDER/%74iny.whl ; python_version > '3'",
    ],
)
def test_a_changed_wheel_is_seen(folder: Path, line: str) -> None:
    line = line.replace("FOLDER", str(folder))
    assert read(folder, line) == [b"the wheel"]


@pytest.mark.parametrize(
    "line", ["-r more.txt", "-rmore.txt", "-c more.txt", "--requirement=more.txt", "-r  ./more.txt"]
)
def test_an_included_file_is_seen(folder: Path, line: str) -> None:
    assert read(folder, line) == [b"more==1"]
    assert read(folder, f"a==1\r\n{line} # and more\r\n") == [b"more==1"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_of_windows_is_read(folder: Path, encoding: str) -> None:
    assert read(folder, "-r more.txt\r\n./tiny.whl\r\n".encode(encoding)) == [
        b"more==1",
        b"the wheel",
    ]


def test_paths_of_packages_are_relative_to_the_first_file(folder: Path) -> None:
    (folder / "team" / "wheels.txt").write_text("./tiny.whl\n-r ../more.txt\n")
    assert read(folder, "-r team/wheels.txt")[1:] == [b"the wheel", b"more==1"]


@pytest.mark.parametrize(
    "line",
    [
        "requests==2.32.5",
        "requests[socks]==2.32.5 ; python_version > '3'",
        "--index-url https://index.example/simple",
        "--find-links ./source",
        "tiny @ https://index.example/tiny.whl",
        "-c https://index.example/constraints.txt",
        "# -r more.txt",
    ],
)
def test_other_lines_name_no_file(folder: Path, line: str) -> None:
    assert read(folder, line) == []


@pytest.mark.parametrize("line", ["./source", "tiny @ file://FOLDER/source", "-e ./source"])
def test_sources_whose_changes_cannot_be_seen_are_refused(folder: Path, line: str) -> None:
    with pytest.raises(SettingsError, match=r"Build a wheel of it"):
        read(folder, line.replace("FOLDER", str(folder)))


def test_editable_packages_are_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"names the editable package --editable=\./source"):
        read(folder, "--editable=./source")
    with pytest.raises(SettingsError, match=r"names the editable package -e git"):
        read(folder, "-e git+https://git.example/tiny#egg=tiny")
