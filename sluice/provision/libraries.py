"""Libraries of individual pipelines: packages that Airflow's Python lacks or has as other versions.

A pipeline's `requirements` in a file `sluice.toml` name a file for pip, or an archive of installed
packages. The packages are installed once on each host, to a folder of `SLUICE_HOME/libraries` that
is named by their hash. They stay there until they have not been used for a month.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, distributions
from pathlib import Path

from sluice.errors import PreflightError, SettingsError
from sluice.provision.kept_packages import KeptPackage, kept_packages, normalized
from sluice.provision.requirement_files import ARCHIVES, contents
from sluice.support.file_modes import make_folder
from sluice.support.tar_archives import unpack
from sluice.values.phrases import counted

FOLDER = "libraries"
"""The folder in SLUICE_HOME."""
ON_EXECUTORS = "sluice-libraries"
"""The folder with the libraries in the working folder of a cluster's executor."""
UNUSED_DAYS = 30.0
"""Libraries that have been unused for this time are removed when others are installed."""
_RETRY_S = 600.0
_SHOWN_LINES = 8
# zipfile raises RuntimeError for encrypted files, and NotImplementedError, a subclass of it, for
# unknown compression methods.
_UNPACKING_ERRORS = (
    OSError,
    EOFError,
    RuntimeError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Libraries:
    """The libraries that a file of requirements, or an archive, asks for."""

    requirements: Path
    home: Path
    """SLUICE_HOME."""

    @cached_property
    def digest(self) -> str:
        """Return the hash of everything that decides which packages are installed.

        Raise SettingsError if a file cannot be read.
        """
        digest = hashlib.sha256()
        parts = [sys.implementation.cache_tag or "", sysconfig.get_platform()]
        parts += [f"{package.name}=={package.version}" for package in kept_packages()]
        digest.update(repr(parts).encode())
        for content in contents(self.requirements):
            digest.update(hashlib.sha256(content).digest())
        return digest.hexdigest()[:16]

    @property
    def folder(self) -> Path:
        """Return the folder of the installed packages, for PYTHONPATH."""
        return self._place / "packages"

    @property
    def is_built(self) -> bool:
        """Return whether the packages are installed.

        Raise SettingsError if this user may not look into the folder.
        """
        with _file_errors(self.home):
            return self.folder.is_dir()

    @property
    def log(self) -> Path:
        """Return the file with the output of an installation in the background."""
        return self._place.with_suffix(".log")

    @property
    def failure(self) -> str:
        """Why an installation failed in the last minutes; an empty text if none did."""
        file = self._place.with_suffix(".failed")
        with suppress(OSError):
            if time.time() - file.stat().st_mtime < _RETRY_S:
                return file.read_text()
        return ""

    @property
    def _place(self) -> Path:
        return self.home / FOLDER / self.digest

    def build(self, say: Callable[[str], object]) -> Path:
        """Install the packages unless they are installed. Return their folder.

        `say` gets the lines of progress. Other processes that want the same packages wait.

        Raise SettingsError if packages do not exist or conflict, or if they cannot be written, and
        PreflightError if pip is missing.
        """
        if not self.is_built:
            with _file_errors(self.home):
                make_folder(self._place.parent)
                with self._lock():
                    # Another process may have installed them meanwhile.
                    if not self.is_built:
                        self._install(say)
                remove_unused(self.home)
        self.note_use()
        return self.folder

    def note_use(self) -> None:
        """Note that the libraries are in use, so that they are not removed."""
        with suppress(OSError):
            os.utime(self._place)

    def start_building(self, command: list[str]) -> None:
        """Start a command that installs the libraries and outlives this process."""
        make_folder(self._place.parent)
        with self.log.open("ab") as output:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_being_built(self) -> bool:
        """Return whether a process is installing the libraries."""
        with suppress(OSError), self._place.with_suffix(".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with self._place.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _install(self, say: Callable[[str], object]) -> None:
        failed = self._place.with_suffix(".failed")
        say(f"Installing the libraries of {self.requirements}.")
        with _removed_after(Path(tempfile.mkdtemp(prefix="building-", dir=self._place.parent))) as (
            temporary
        ):
            target = temporary / "packages"
            target.mkdir()
            try:
                if self.requirements.name.endswith(ARCHIVES):
                    _unpack(self.requirements, target)
                else:
                    _run_pip(self.requirements, target, temporary, say)
                _remove_kept(self.requirements, target)
            except (SettingsError, PreflightError) as error:
                failed.write_text(error.detail)
                raise
            temporary.replace(self._place)
        failed.unlink(missing_ok=True)
        count = counted(len(installed_packages(self.folder)), "package")
        say(f"Installed {count} in {self.folder}.")


@dataclass(frozen=True)
class Installed:
    """Libraries that are installed on this host."""

    place: Path
    unused_days: float

    @property
    def digest(self) -> str:
        return self.place.name

    @property
    def size(self) -> int:
        """The size of all files, in bytes."""
        return sum(file.stat().st_size for file in self.place.rglob("*") if file.is_file())

    @property
    def packages(self) -> list[str]:
        return installed_packages(self.place / "packages")


def installed(home: Path) -> list[Installed]:
    """Return all libraries that are installed in a home, sorted by the time of their last use."""
    listed: list[Installed] = []
    for packages in (home / FOLDER).glob("*/packages"):
        place = packages.parent
        if place.name.startswith("building-"):
            continue
        # Another process may be removing them.
        with suppress(FileNotFoundError):
            listed.append(Installed(place, (time.time() - place.stat().st_mtime) / _DAY_S))
    return sorted(listed, key=lambda each: each.unused_days)


def remove_unused(home: Path, days: float = UNUSED_DAYS) -> list[Installed]:
    """Remove libraries that no run has used for some days, and return them.

    Also remove what killed installations have left behind.
    """
    for left in (home / FOLDER).glob("building-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _DAY_S:
                shutil.rmtree(left)
    removed: list[Installed] = []
    for each in installed(home):
        if each.unused_days >= days and _remove(each.place):
            removed.append(each)
    return removed


def _remove(place: Path) -> bool:
    """Remove installed libraries.

    Return False if another process removes them, or if they belong to another user.
    """
    try:
        # Renamed first, so that no process uses a folder that has been removed in part.
        removing = Path(tempfile.mkdtemp(prefix="building-", dir=place.parent))
        with _removed_after(removing):
            place.replace(removing / "removed")
        # The lock stays, because a process that is about to install may already have opened it.
        for suffix in (".log", ".failed"):
            place.with_suffix(suffix).unlink(missing_ok=True)
    except OSError:
        return False
    return True


def archive_of(folder: Path) -> Path:
    """Return an archive of the packages in a folder, for executors on other hosts.

    It is written beside the folder when it is first asked for.
    """
    archive = folder.with_suffix(".zip")
    if not archive.exists():
        descriptor, name = tempfile.mkstemp(prefix="packages-", dir=folder.parent)
        os.close(descriptor)
        # Files of reproducible archives may be older than the first year of a zip file.
        with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as written:
            for file in sorted(folder.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    written.write(file, file.relative_to(folder))
        Path(name).replace(archive)
    return archive


def installed_packages(folder: Path) -> list[str]:
    """Return the packages in a folder, such as `requests==2.32.5`, sorted."""
    found = distributions(path=[str(folder)])
    return sorted(f"{normalized(each.name)}=={each.version}" for each in found)


@contextmanager
def _file_errors(home: Path) -> Iterator[None]:
    """Raise SettingsError in place of an OSError about the folder of the libraries."""
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"{home / FOLDER} cannot be read or written: {error.strerror or error}.",
            next_step="Let this process's user write to the folder, or change SLUICE_HOME. "
            "If the disk is full, make space.",
        ) from error


@contextmanager
def _removed_after(folder: Path) -> Iterator[Path]:
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(archive: Path, target: Path) -> None:
    advice = (
        "Make the archive from a folder that `pip install --target` has written, with the packages "
        "at the top of the archive."
    )
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(target)
        else:
            unpack(archive, target)
    except _UNPACKING_ERRORS as error:
        raise SettingsError(f"{archive} cannot be unpacked: {error}.", next_step=advice) from None
    for packages in target.glob("*/*.dist-info"):
        if not any(target.glob("*.dist-info")):
            folder = packages.parent.name
            raise SettingsError(
                f"{archive} has its packages in the folder {folder}, not at its top.",
                next_step=advice,
            )


def _run_pip(
    requirements: Path, target: Path, temporary: Path, say: Callable[[str], object]
) -> None:
    """Install a file's requirements; empty wheels stand in for the packages that must stay."""
    lines: list[str] = []
    # A locked file has the hashes of the packages themselves, so the empty wheels would not match
    # them.
    is_locked = any(b"--hash" in content for content in contents(requirements))
    for package in kept_packages():
        if is_locked:
            lines.append(f"{package.name}=={package.version}\n")
            continue
        wheel = package.write_stand_in(temporary)
        lines.append(f"{package.name} @ {wheel.as_uri()}\n")
    constraints = temporary / "kept.txt"
    constraints.write_text("".join(lines))
    command = [
        sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
        "--progress-bar=off", "--no-warn-conflicts", "--target", str(target),
        "--requirement", str(requirements), "--constraint", str(constraints),
    ]  # fmt: skip
    # The libraries of another pipeline must not count as installed.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # pip refuses --target if its configuration sets `user`.
    variables["PIP_USER"] = "0"
    output: list[str] = []
    with subprocess.Popen(
        command,
        cwd=requirements.parent,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line.rstrip())
            if line.startswith(("Collecting", "Building", "Installing")):
                say(line.rstrip())
    for wheel in temporary.glob("*.whl"):
        wheel.unlink()
    constraints.unlink()
    if process.returncode:
        raise _pip_error(requirements, output)


def _pip_error(requirements: Path, output: list[str]) -> PreflightError | SettingsError:
    """Return the error to raise for pip's output."""
    if any("No module named pip" in line for line in output):
        return PreflightError(
            f"{sys.executable} has no pip, which installs the libraries of {requirements}.",
            next_step=f"Install it: {sys.executable} -m ensurepip. Or name an archive of installed "
            "packages in place of the file.",
        )
    errors = [line.removeprefix("ERROR: ") for line in output if line.startswith("ERROR: ")]
    kept = {package.name: package for package in kept_packages()}
    conflicts = _conflicts(output)
    for line in conflicts:
        named = re.search(r"\(constraint\) ([\w.-]+)", line)
        package = kept.get(normalized(named[1])) if named else None
        if package is not None:
            others = [other for other in conflicts if "(constraint)" not in other]
            return SettingsError(
                f"{requirements} conflicts with {package.name} {package.version}, with which "
                f"Sluice runs: {'; '.join(others[:_SHOWN_LINES])}.",
                next_step=f"Choose versions that accept {package.name}=={package.version}.",
            )
    connection = [line for line in output if " after connection broken by " in line]
    if connection:
        _, _, cause = connection[-1].partition(" after connection broken by ")
        return SettingsError(
            f"pip cannot reach the package index for {requirements}: {cause.rstrip('.')}.",
            next_step="Bring the index back, or correct its address in pip's settings "
            "(PIP_INDEX_URL) or in the file. Without an index, name an archive of installed "
            "packages in place of the file.",
        )
    said = errors[0] if errors else "; ".join(output[-2:])
    if said == "Exception:":
        # pip itself has failed; its traceback ends with the error.
        said = output[-1]
    return SettingsError(
        f"pip cannot install the libraries of {requirements}: {said.rstrip('.')}.",
        next_step="Correct the file, or pip's settings for your package index.",
    )


def _conflicts(output: list[str]) -> list[str]:
    """Return pip's lines about the requirements that conflict."""
    if "The conflict is caused by:" not in output:
        return []
    lines: list[str] = []
    for line in output[output.index("The conflict is caused by:") + 1 :]:
        if not line.strip():
            break
        lines.append(line.strip())
    return lines


def _remove_kept(requirements: Path, target: Path) -> None:
    """Remove copies of kept packages. Raise SettingsError if a copy has another version."""
    kept: dict[str, KeptPackage] = {package.name: package for package in kept_packages()}
    for each in [*distributions(path=[str(target)])]:
        package = kept.get(normalized(each.name))
        if package is None:
            continue
        if package.version != each.version:
            raise SettingsError(
                f"{requirements} has {package.name} {each.version}, but Sluice runs with "
                f"{package.version}.",
                next_step=f"Remove the package, or use {package.name}=={package.version}.",
            )
        _remove_files(each, target)


def _remove_files(package: Distribution, target: Path) -> None:
    removed = normalized(package.name), package.version
    for file in package.files or ():
        path = Path(str(package.locate_file(file))).resolve()
        if path.is_relative_to(target.resolve()):
            path.unlink(missing_ok=True)
    for folder in target.glob("*.dist-info"):
        name, _, version = folder.stem.partition("-")
        if (normalized(name), version) == removed:
            shutil.rmtree(folder)
