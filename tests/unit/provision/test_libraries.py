"""Libraries of single pipelines: installed once for each content, without what Sluice runs with."""

from __future__ import annotations

import hashlib
import os
import tarfile
import threading
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from sluice.errors import SettingsError
from sluice.provision.kept_packages import kept_packages
from sluice.provision.libraries import (
    FOLDER,
    Libraries,
    _pip_error,
    _remove,
    archive_of,
    installed,
    remove_unused,
)
from tests.support.tiny_wheels import write_packages, write_wheel


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    write_wheel(tmp_path, "1.0")
    write_wheel(tmp_path, "2.0")
    file = tmp_path / "requirements.txt"
    file.write_text("./tinylib-1.0-py3-none-any.whl\n")
    return file


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of packages, which is unpacked without pip."""
    file = tmp_path / "packages.zip"
    write_packages(file, "1.0")
    return file


def of(requirements: Path) -> Libraries:
    return Libraries(requirements, requirements.parent / "home")


def refusal(requirements: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        of(requirements).build(print)
    return str(caught.value)


def test_the_packages_that_runs_import_are_kept() -> None:
    names = {package.name for package in kept_packages()}
    assert {"sluice-streams", "pyspark", "pyarrow", "msgspec", "py4j", "psycopg-binary"} <= names
    assert "apache-airflow" not in names, "pipelines may have other versions than Airflow's"
    assert "pytest" not in names, "they are not needed by an extra of a run"


def test_libraries_are_installed_once(archive: Path) -> None:
    said: list[str] = []
    folder = of(archive).build(said.append)
    assert (folder / "tinylib.py").exists()
    assert said[0] == f"Installing the libraries of {archive}."
    assert said[-1] == f"Installed 1 package in {folder}."

    said.clear()
    assert of(archive).build(said.append) == folder
    assert said == []


def test_processes_that_install_at_once_install_once(archive: Path) -> None:
    said: list[str] = []
    threads = [threading.Thread(target=of(archive).build, args=(said.append,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(line.startswith("Installing the libraries of") for line in said) == 1


def test_the_folder_follows_from_the_content_of_all_files(requirements: Path) -> None:
    first = of(requirements).digest
    base = requirements.with_name("base.txt")
    base.write_text("# nothing\n")
    requirements.write_text("-r base.txt\n./tinylib-1.0-py3-none-any.whl\n")
    second = of(requirements).digest
    base.write_text("# nothing else\n")
    third = of(requirements).digest
    write_wheel(requirements.parent, "1.0", requires="msgspec")
    fourth = of(requirements).digest
    assert len({first, second, third, fourth}) == 4


def test_a_file_with_a_loop_of_includes_is_read_once(requirements: Path) -> None:
    requirements.write_text("-r requirements.txt\n")
    assert of(requirements).digest


def test_kept_packages_are_not_installed_again(requirements: Path) -> None:
    write_wheel(requirements.parent, "3.0", requires="pyarrow")
    requirements.write_text("./tinylib-3.0-py3-none-any.whl\nmsgspec\n")
    folder = of(requirements).build(print)
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == [
        "tinylib-3.0.dist-info",
        "tinylib.py",
    ]


def test_a_conflict_with_a_kept_package_is_refused(requirements: Path) -> None:
    requirements.write_text("pyarrow<1\n")
    said = refusal(requirements)
    assert f"conflicts with pyarrow {version('pyarrow')}, with which Sluice runs" in said
    assert "The user requested pyarrow<1" in said
    assert f"Choose versions that accept pyarrow=={version('pyarrow')}." in said
    assert "conflicts with pyarrow" in of(requirements).failure
    assert installed(of(requirements).home) == []


def test_a_conflict_of_a_librarys_own_requirement_is_refused(requirements: Path) -> None:
    write_wheel(requirements.parent, "4.0", requires="msgspec<0.1")
    requirements.write_text("./tinylib-4.0-py3-none-any.whl\n")
    said = refusal(requirements)
    assert f"conflicts with msgspec {version('msgspec')}" in said
    assert "tinylib 4.0 depends on msgspec<0.1" in said


def test_a_locked_file_with_hashes_is_installed(requirements: Path) -> None:
    wheel = write_wheel(requirements.parent, "1.0")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    requirements.write_text(f"./{wheel.name} --hash=sha256:{digest}\n")
    assert (of(requirements).build(print) / "tinylib.py").exists()
    requirements.write_text(f"./{wheel.name} --hash=sha256:{'0' * 64}\n")
    assert "HASHES" in refusal(requirements)


def test_a_file_may_include_an_address(requirements: Path) -> None:
    requirements.write_text("-c https://localhost/constraints.txt\n./tinylib-1.0.whl\n")
    assert of(requirements).digest


def test_mistakes_name_the_file(requirements: Path) -> None:
    requirements.write_text("./no-such-1.0-py3-none-any.whl\n")
    said = refusal(requirements)
    assert said.startswith(f"pip cannot install the libraries of {requirements}: ")
    assert "no-such-1.0-py3-none-any.whl" in said
    (requirements.parent / "source").mkdir()
    requirements.write_text("./source\n")
    assert "Build a wheel of it" in refusal(requirements)
    requirements.unlink()
    assert refusal(requirements).startswith(f"{requirements} cannot be read: ")


def test_a_success_ends_a_failure(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr("sluice.provision.libraries.zipfile.ZipFile.extractall", _fill_disk)
        assert "cannot be unpacked: the disk is full" in refusal(archive)
    assert "the disk is full" in of(archive).failure
    of(archive).build(print)
    assert of(archive).failure == ""


def _fill_disk(*_: object) -> None:
    raise OSError("the disk is full")


@pytest.mark.parametrize("name", ["packages.zip", "packages.tar.gz"])
def test_an_archive_of_packages_is_unpacked(requirements: Path, name: str) -> None:
    import shutil

    folder = of(requirements).build(print)
    base, _, kind = name.partition(".")
    shutil.make_archive(
        str(requirements.parent / base), {"zip": "zip", "tar.gz": "gztar"}[kind], folder
    )
    from_archive = of(requirements.with_name(name)).build(print)
    assert from_archive != folder
    assert (from_archive / "tinylib.py").read_text() == (folder / "tinylib.py").read_text()


def test_an_archive_with_another_version_of_a_kept_package_is_refused(requirements: Path) -> None:
    archive = requirements.with_name("packages.zip")
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("pyarrow-1.0.dist-info/METADATA", "Name: pyarrow\nVersion: 1.0\n")
    said = refusal(archive)
    assert f"has pyarrow 1.0, but Sluice runs with {version('pyarrow')}" in said
    assert f"use pyarrow=={version('pyarrow')}" in said


def test_unused_libraries_are_removed_after_a_month(archive: Path) -> None:
    old = of(archive)
    old.build(print)
    long_ago = time.time() - 31 * 86_400
    os.utime(old.folder.parent, (long_ago, long_ago))
    write_packages(archive, "2.0")
    new = of(archive)
    new.build(print)
    assert [each.digest for each in installed(new.home)] == [new.digest]
    assert [each.packages for each in installed(new.home)] == [["tinylib==2.0"]]
    assert remove_unused(new.home) == []


def test_a_use_keeps_libraries(archive: Path) -> None:
    libraries = of(archive)
    libraries.build(print)
    long_ago = time.time() - 31 * 86_400
    os.utime(libraries.folder.parent, (long_ago, long_ago))
    libraries.build(print)
    assert remove_unused(libraries.home) == []


def test_an_archive_for_executors_has_all_modules(archive: Path) -> None:
    folder = of(archive).build(print)
    with zipfile.ZipFile(archive_of(folder)) as of_executors:
        assert "tinylib.py" in of_executors.namelist()
    assert archive_of(folder).parent == folder.parent


def test_an_archive_for_executors_may_have_files_older_than_zip(requirements: Path) -> None:
    packages = requirements.with_name("packages.tar.gz")
    with tarfile.open(packages, "w:gz") as written:
        module = tarfile.TarInfo("old.py")
        module.mtime = 0
        written.addfile(module)
    with zipfile.ZipFile(archive_of(of(packages).build(print))) as of_executors:
        assert of_executors.namelist() == ["old.py"]


def test_an_archive_that_cannot_be_unpacked_is_told(archive: Path) -> None:
    whole = archive.read_bytes()
    encrypted = bytearray(whole)
    directory = encrypted.find(b"PK\x01\x02")
    encrypted[6] |= 1
    encrypted[directory + 8] |= 1
    archive.write_bytes(encrypted)
    assert "is encrypted, password required for extraction. Make the archive from" in refusal(
        archive
    )
    packed = archive.with_name("packages.tar.gz")
    with tarfile.open(packed, "w:gz") as written:
        written.add(archive, "tinylib.py")
    half = packed.stat().st_size // 2
    packed.write_bytes(packed.read_bytes()[:half])
    assert f"{packed} cannot be unpacked: " in refusal(packed)


def test_an_archive_of_the_folder_itself_is_refused(requirements: Path) -> None:
    packages = requirements.with_name("packages.zip")
    with zipfile.ZipFile(packages, "w") as written:
        written.writestr("packages/tinylib.py", "")
        written.writestr("packages/tinylib-1.0.dist-info/METADATA", "Name: tinylib\nVersion: 1.0\n")
    said = refusal(packages)
    assert "has its packages in the folder packages, not at its top. Make the archive from" in said
    assert of(packages).failure.endswith("in the folder packages, not at its top.")


def test_a_home_that_cannot_be_written_is_told(archive: Path) -> None:
    (archive.parent / "home").write_text("a file in place of the folder")
    said = refusal(archive)
    assert said.startswith(f"{archive.parent / 'home' / FOLDER} cannot be read or written: Not a")
    assert "or change SLUICE_HOME" in said


def test_what_a_killed_installation_has_left_is_removed(archive: Path) -> None:
    libraries = of(archive)
    libraries.build(print)
    killed = libraries.home / FOLDER / "building-killed"
    going_on = libraries.home / FOLDER / "building-going-on"
    for folder in (killed, going_on):
        (folder / "packages").mkdir(parents=True)
    two_days_ago = time.time() - 2 * 86_400
    os.utime(killed, (two_days_ago, two_days_ago))
    assert remove_unused(libraries.home) == []
    assert not killed.exists()
    assert going_on.exists()


def test_libraries_that_another_process_removes_are_left_to_it(archive: Path) -> None:
    libraries = of(archive)
    place = libraries.build(print).parent
    assert _remove(place)
    assert not _remove(place)
    left = [file.name for file in place.parent.iterdir()]
    assert left == [f"{libraries.digest}.lock"], "a process may be waiting for the lock"


def test_an_index_that_is_away_is_told(requirements: Path) -> None:
    output = [
        "WARNING: Retrying (Retry(total=0)) after connection broken by "
        "'NewConnectionError('Connection refused')': /simple/tiny/",
        "ERROR: Could not find a version that satisfies the requirement tiny==1 "
        "(from versions: none)",
    ]
    said = str(_pip_error(requirements, output))
    assert said.startswith(f"pip cannot reach the package index for {requirements}: 'NewConn")
    assert "PIP_INDEX_URL" in said


def test_an_error_of_pip_itself_is_told(requirements: Path) -> None:
    output = ["ERROR: Exception:", "Traceback (most recent call last):", "OSError: no space left"]
    assert f"of {requirements}: OSError: no space left. " in str(_pip_error(requirements, output))
