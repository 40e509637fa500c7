"""Download and verify the jars of Delta Lake and of the broker.

`jars.lock` lists every jar of the bundles with its SHA-256; nothing else is downloaded. A bundle's
folder is created only after all of its jars are verified, so an existing folder is complete.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path

from sluice.errors import PreflightError
from sluice.provision import ivy
from sluice.provision.ivy import Module
from sluice.provision.supported_versions import installed_spark, release_of

LOCK = Path(__file__).with_name("jars.lock")
_MARK = ".verified"
BROKER = "4.1.1"
"""The version of the local broker."""
_LANES = 4
"""The number of parallel downloads. All jars take 16 s with four downloads, 42 s with one, 14 s
with eight."""


def _delta(spark: str) -> list[Module]:
    # Delta Lake's other dependencies are left out, because only Unity Catalog needs them.
    return [
        Module("io.delta", f"delta-spark_{spark}_2.13", "4.4.0"),
        Module("io.delta", "delta-storage", "4.4.0"),
    ]


def broker_roots(version: str) -> list[Module]:
    """Return the jars of a version of Kafka's broker, without their dependencies."""
    # If a binding for slf4j were missing, the broker would not log why it fails.
    return [
        Module("org.apache.kafka", "kafka_2.13", version),
        Module("org.slf4j", "slf4j-simple", "1.7.36"),
    ]


class Bundle(StrEnum):
    """The jars of one class path, stored in one folder."""

    DELTA_FOR_4_0 = "delta-4.0"
    DELTA_FOR_4_1 = "delta-4.1"
    DELTA_FOR_4_2 = "delta-4.2"
    BROKER = "broker"
    REGISTRY = "registry"
    """The archive of a schema registry, which only some tests and demos need."""
    PROTOBUF = "protobuf"
    """Protobuf's library for Java, which only a test needs."""


_DELTA = {
    (4, 0): Bundle.DELTA_FOR_4_0,
    (4, 1): Bundle.DELTA_FOR_4_1,
    (4, 2): Bundle.DELTA_FOR_4_2,
}
"""Release of Spark → the jars of Delta Lake for it. Delta Lake has no jars for Spark 4.3 yet."""
_ROOTS = {
    Bundle.DELTA_FOR_4_0: _delta("4.0"),
    Bundle.DELTA_FOR_4_1: _delta("4.1"),
    Bundle.DELTA_FOR_4_2: _delta("4.2"),
    Bundle.BROKER: broker_roots(BROKER),
    Bundle.REGISTRY: [
        Module("io.apicurio", "apicurio-registry-app", "2.6.13.Final", "all", "tar.gz"),
    ],
    Bundle.PROTOBUF: [Module("com.google.protobuf", "protobuf-java", "4.33.6")],
}


@dataclass(frozen=True, order=True)
class Jar:
    """One line of the lock file."""

    bundle: Bundle
    module: Module
    sha256: str

    def __str__(self) -> str:
        return f"{self.sha256} {self.bundle} {self.module}"


def delta_bundle() -> Bundle:
    """Return the jars of Delta Lake for the installed Spark.

    Raises PreflightError if there are none.
    """
    spark = installed_spark()
    bundle = _DELTA.get(release_of(spark)) if spark else None
    if bundle is None:
        releases = ", ".join(".".join(map(str, release)) for release in _DELTA)
        raise PreflightError(
            "Delta Lake has no jars for "
            f"{f'Spark {spark}' if spark else 'a Spark that is not installed'}.",
            next_step=f"For pipelines with Delta tables, install one of Spark {releases}.",
        )
    return bundle


def bundles_for_this_machine() -> list[Bundle]:
    """Return the broker's jars and, if the installed Spark has any, those of Delta Lake."""
    try:
        return [delta_bundle(), Bundle.BROKER]
    except PreflightError:
        return [Bundle.BROKER]


def read_lock(path: Path = LOCK) -> tuple[Jar, ...]:
    """Read the lock file.

    Raise ValueError for a line that is not `sha256 bundle module`.
    """
    jars: list[Jar] = []
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            jars.append(_parse(line))
    return tuple(jars)


def _parse(line: str) -> Jar:
    try:
        sha256, bundle, module = line.split()
        return Jar(Bundle(bundle), Module.parse(module), sha256)
    except ValueError:
        raise ValueError(f"Invalid line in jars.lock: {line!r}") from None


def folder(bundle: Bundle, root: Path) -> Path:
    """Return the folder of `bundle` below `root`.

    Raise PreflightError if the folder is missing or incomplete.
    """
    path = root / bundle
    if not is_ready(path, _jars_of(bundle, read_lock())):
        raise PreflightError(
            f"{path} does not contain the {bundle} jars.",
            next_step="Run python -m sluice.provision jars.",
        )
    return path


def is_ready(path: Path, jars: Iterable[Jar]) -> bool:
    """Return whether `path` was created for exactly these `jars` and all of them still exist.

    Checksums are not verified.
    """
    jars = tuple(jars)
    mark = path / _MARK
    if not mark.is_file() or mark.read_text() != _mark(jars):
        return False
    return all((path / jar.module.file).is_file() for jar in jars)


def provide(
    root: Path,
    java: Path,
    *,
    bundles: Iterable[Bundle] = tuple(Bundle),
    lock: Path = LOCK,
    on_jar: Callable[[], None] = lambda: None,
) -> None:
    """Download missing bundles to `root`.

    Raise PreflightError if a jar is missing or has the wrong checksum.
    """
    missing = _missing(root, bundles, lock)
    if not missing:
        return
    root.mkdir(parents=True, exist_ok=True)
    # The temporary folder is on the same file system, so that a verified bundle can be renamed.
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as work:
        lanes: list[tuple[Jar, ...]] = []
        for jars in missing.values():
            lanes += _lanes(jars)
        fetched = _fetch(java, lanes, Path(work), on_jar)
        for bundle, jars in missing.items():
            _gather(jars, fetched, Path(work, bundle))
            _put_in_place(Path(work, bundle), root / bundle)


def count_missing(root: Path, bundles: Iterable[Bundle] = tuple(Bundle), lock: Path = LOCK) -> int:
    """Return the number of jars that `provide` would download."""
    return sum(map(len, _missing(root, bundles, lock).values()))


def _missing(root: Path, bundles: Iterable[Bundle], lock: Path) -> dict[Bundle, tuple[Jar, ...]]:
    """Return the jars of the bundles that are missing in `root`."""
    locked = read_lock(lock)
    missing: dict[Bundle, tuple[Jar, ...]] = {}
    for bundle in bundles:
        jars = _jars_of(bundle, locked)
        if not is_ready(root / bundle, jars):
            missing[bundle] = jars
    return missing


def write_lock(java: Path, path: Path = LOCK, roots: Mapping[Bundle, list[Module]] = _ROOTS) -> int:
    """Resolve the bundles from their roots, and rewrite the lock file.

    Return the number of jars.
    """
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor() as pool:

        def resolve(bundle: Bundle) -> list[Jar]:
            return _resolve(java, bundle, roots[bundle], Path(work, bundle))

        jars = sorted(chain.from_iterable(pool.map(resolve, roots)))
    head = (
        "# Every jar that set-up downloads, with its SHA-256. "
        "Generated by: python -m sluice.provision lock-jars\n"
    )
    path.write_text(head + _lines(jars))
    return len(jars)


def _resolve(java: Path, bundle: Bundle, roots: list[Module], work: Path) -> list[Jar]:
    # For the broker, also fetch the dependencies of `roots`. For Delta Lake, `roots` already has
    # all jars.
    modules = ivy.fetch(java, roots, work, transitive=bundle is Bundle.BROKER)
    jars: list[Jar] = []
    for module, path in modules.items():
        jars.append(Jar(bundle, module, _sha256(path)))
    return jars


def _jars_of(bundle: Bundle, jars: Iterable[Jar]) -> tuple[Jar, ...]:
    return tuple(jar for jar in jars if jar.bundle is bundle)


def _lanes(jars: tuple[Jar, ...]) -> list[tuple[Jar, ...]]:
    lanes = min(_LANES, 1 + len(jars) // 10)
    return [jars[start::lanes] for start in range(lanes)]


def _fetch(
    java: Path,
    lanes: list[tuple[Jar, ...]],
    work: Path,
    on_jar: Callable[[], None],
) -> dict[Module, Path]:
    def fetch(numbered: tuple[int, tuple[Jar, ...]]) -> dict[Module, Path]:
        number, lane = numbered
        modules = [jar.module for jar in lane]
        return ivy.fetch(java, modules, work / f"lane-{number}", transitive=False, on_jar=on_jar)

    paths: dict[Module, Path] = {}
    with ThreadPoolExecutor(len(lanes)) as pool:
        for lane_paths in pool.map(fetch, enumerate(lanes)):
            paths.update(lane_paths)
    return paths


def _gather(jars: tuple[Jar, ...], fetched: dict[Module, Path], into: Path) -> None:
    into.mkdir()
    for jar in jars:
        path = fetched.get(jar.module)
        if path is None:
            raise PreflightError(
                f"The repository has no jar for {jar.module}.", next_step="Try again later."
            )
        if (sha256 := _sha256(path)) != jar.sha256:
            raise PreflightError(
                f"{jar.module} has SHA-256 {sha256} instead of the locked {jar.sha256}.",
                next_step="Nothing was installed. Check which proxy or mirror serves the "
                "repository to this machine.",
            )
        path.rename(into / jar.module.file)
    (into / _MARK).write_text(_mark(jars))


def _put_in_place(new: Path, path: Path) -> None:
    if path.exists():
        # Rename instead of deleting, so that no process sees a partial folder.
        path.rename(new.with_name(f"{new.name}-before"))
    new.rename(path)


def _mark(jars: Iterable[Jar]) -> str:
    return hashlib.sha256(_lines(jars).encode()).hexdigest()


def _lines(jars: Iterable[Jar]) -> str:
    return "".join(f"{jar}\n" for jar in jars)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
