from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from sluice.errors import PreflightError
from sluice.provision import ivy, jars, machine_checks
from sluice.provision.ivy import Module
from sluice.provision.jars import Bundle, Jar

CONTENT = {
    Jar(
        bundle,
        Module("org.example", f"{bundle}-{number}", "1.0"),
        hashlib.sha256(b"jar %d" % number).hexdigest(),
    ): (b"jar %d" % number)
    for bundle in Bundle
    for number in range(12)
}
JAVA = Path("java")
DELTA = Bundle.DELTA_FOR_4_2
ROOT = Path(__file__).parents[3]


class Repository:
    """A fake Ivy: serves the given modules and records the requested ones."""

    def __init__(self, content: dict[Module, bytes]) -> None:
        self.content = content
        self.requested: list[Module] = []

    def fetch(
        self,
        java: Path,
        modules: Iterable[Module],
        work: Path,
        *,
        transitive: bool,
        on_jar: Callable[[], None],
    ) -> dict[Module, Path]:
        assert not transitive, "locked modules are never resolved again"
        work.mkdir()
        results = {}
        for module in modules:
            self.requested.append(module)
            if module in self.content:
                results[module] = work / module.file
                results[module].write_bytes(self.content[module])
                on_jar()
        return results


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "jars.lock"
    path.write_text("# a remark\n" + "".join(f"{jar}\n" for jar in CONTENT))
    return path


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Repository:
    repository = Repository({jar.module: content for jar, content in CONTENT.items()})
    monkeypatch.setattr(ivy, "fetch", repository.fetch)
    return repository


def test_the_committed_lock_contains_exactly_the_required_jars() -> None:
    lock = jars.read_lock()
    for spark in ("4.0", "4.1", "4.2"):
        delta = {str(jar.module) for jar in lock if jar.bundle == f"delta-{spark}"}
        assert delta == {
            f"io.delta:delta-spark_{spark}_2.13:4.4.0",
            "io.delta:delta-storage:4.4.0",
        }
    broker = {str(jar.module) for jar in lock if jar.bundle is Bundle.BROKER}
    assert {"org.apache.kafka:kafka_2.13:4.1.1", "org.apache.kafka:kafka-clients:4.1.1"} < broker
    assert len(broker) == 46
    assert all(len(jar.sha256) == 64 for jar in lock)


def test_the_installed_spark_chooses_the_jars_of_delta_lake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jars, "installed_spark", lambda: "4.1.4")
    assert jars.delta_bundle() == "delta-4.1"
    assert jars.bundles_for_this_machine() == ["delta-4.1", "broker"]


@pytest.mark.parametrize(
    ("spark", "says"),
    [("4.3.0", "Spark 4.3.0. For pipelines"), ("", "a Spark that is not installed")],
)
def test_without_jars_of_delta_lake_the_error_names_the_releases(
    spark: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "installed_spark", lambda: spark)
    assert jars.bundles_for_this_machine() == ["broker"]
    with pytest.raises(PreflightError, match=f"Delta Lake has no jars for {re.escape(says)}"):
        jars.delta_bundle()


def test_every_bundle_is_downloaded(tmp_path: Path, lock: Path, repository: Repository) -> None:
    root, arrived = tmp_path / "jars", []
    assert jars.count_missing(root, lock=lock) == len(CONTENT)
    jars.provide(root, JAVA, lock=lock, on_jar=lambda: arrived.append(1))
    assert {str(path.relative_to(root)) for path in root.rglob("*.jar")} == {
        f"{jar.bundle}/{jar.module.file}" for jar in CONTENT
    }
    assert len(arrived) == len(CONTENT)
    assert sorted(path.name for path in root.iterdir()) == sorted(Bundle), "no other file is left"


def test_the_second_time_nothing_is_downloaded(
    tmp_path: Path, lock: Path, repository: Repository
) -> None:
    jars.provide(tmp_path / "jars", JAVA, lock=lock)
    repository.requested.clear()
    jars.provide(tmp_path / "jars", JAVA, lock=lock)
    assert repository.requested == []


def test_only_the_bundle_with_a_missing_jar_is_downloaded_again(
    tmp_path: Path, lock: Path, repository: Repository
) -> None:
    root = tmp_path / "jars"
    jars.provide(root, JAVA, lock=lock)
    (root / DELTA / f"{DELTA}-3-1.0.jar").unlink()
    repository.requested.clear()
    jars.provide(root, JAVA, lock=lock)
    assert {module.name.split("-")[0] for module in repository.requested} == {"delta"}
    assert len(list((root / DELTA).glob("*.jar"))) == 12


def test_one_bundle_can_be_downloaded_alone(
    tmp_path: Path, lock: Path, repository: Repository
) -> None:
    jars.provide(tmp_path, JAVA, bundles=[DELTA], lock=lock)
    assert (
        jars.count_missing(tmp_path, [DELTA], lock),
        jars.count_missing(tmp_path, lock=lock),
    ) == (0, len(CONTENT) - 12)


def test_a_new_lock_replaces_the_folder(tmp_path: Path, lock: Path, repository: Repository) -> None:
    root = tmp_path / "jars"
    jars.provide(root, JAVA, lock=lock)
    lock.write_text("".join(f"{jar}\n" for jar in CONTENT if not jar.module.name.endswith("-3")))
    jars.provide(root, JAVA, lock=lock)
    assert not list(root.rglob("*-3-1.0.jar"))
    assert len(list(root.rglob("*.jar"))) == len(CONTENT) - len(Bundle)


def test_a_wrong_checksum_installs_nothing(
    tmp_path: Path, lock: Path, repository: Repository
) -> None:
    wrong = Module("org.example", "broker-3", "1.0")
    repository.content[wrong] = b"something else"
    with pytest.raises(PreflightError, match=r"org\.example:broker-3:1\.0 has SHA-256") as problem:
        jars.provide(tmp_path / "jars", JAVA, lock=lock)
    assert problem.value.next_step
    assert not (tmp_path / "jars" / "broker").exists()


def test_a_missing_jar_installs_nothing(tmp_path: Path, lock: Path, repository: Repository) -> None:
    del repository.content[Module("org.example", f"{DELTA}-11", "1.0")]
    with pytest.raises(PreflightError, match=r"no jar for org\.example:delta-4\.2-11:1\.0"):
        jars.provide(tmp_path / "jars", JAVA, lock=lock)
    assert not (tmp_path / "jars" / DELTA).exists()


@pytest.mark.parametrize(
    "line", ["abc", "abc broker", "abc broker org.example:one", "abc flink org.example:one:1"]
)
def test_an_invalid_line_of_the_lock_is_quoted(tmp_path: Path, line: str) -> None:
    (tmp_path / "jars.lock").write_text(line)
    with pytest.raises(ValueError, match=line):
        jars.read_lock(tmp_path / "jars.lock")


def test_an_incomplete_folder_suggests_make_setup(tmp_path: Path) -> None:
    with pytest.raises(
        PreflightError,
        match=r"does not contain the broker jars\. Run python -m sluice\.provision jars\.",
    ):
        jars.folder(Bundle.BROKER, tmp_path)


def fake_java(folder: Path, text: str) -> dict[str, str]:
    (folder / "bin").mkdir()
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{text}\nEND\n")
    java.chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:/bin:/usr/bin"}


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16', 25),
    ],
)
def test_java_is_found_on_the_path_and_in_java_home(
    tmp_path: Path, text: str, release: int
) -> None:
    environ = fake_java(tmp_path, text)
    java = machine_checks.Java(tmp_path / "bin" / "java", release)
    assert machine_checks.find_java(environ) == java
    assert machine_checks.find_java({"PATH": "", "JAVA_HOME": str(tmp_path)}) == java


def test_the_version_is_read_from_the_file_of_an_installation_without_starting_java(
    tmp_path: Path,
) -> None:
    environ = fake_java(tmp_path, "The operation could not be completed.")
    (tmp_path / "release").write_text('IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.15"\n')
    assert machine_checks.find_java(environ).release == 17
    (tmp_path / "release").write_text("of something else")
    with pytest.raises(PreflightError, match="Cannot find the version"):
        machine_checks.find_java(environ)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('java version "1.8.0_402"', "is Java 8, but Spark and Kafka need 17 or newer"),
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11, but Spark and Kafka need 17 or newer"),
        (
            "The operation could not be completed.",
            "Cannot find the version of .*java in its output: 'The operation",
        ),
    ],
)
def test_an_unusable_java_is_rejected(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(PreflightError, match=error) as problem:
        machine_checks.find_java(fake_java(tmp_path, text))
    assert problem.value.next_step.startswith("Install Java 17 or newer")


def test_missing_java_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="Java was not found on the PATH"):
        machine_checks.find_java({"PATH": str(tmp_path)})


def test_a_wrong_java_home_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="JAVA_HOME is /nowhere"):
        machine_checks.find_java({"PATH": str(tmp_path), "JAVA_HOME": "/nowhere"})


def test_a_port_in_use_is_reported_with_its_purpose() -> None:
    with socket.create_server((machine_checks.LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            PreflightError, match=rf"Port {port} of 127\.0\.0\.1, which Kafka needs, is in use\."
        ):
            machine_checks.check_port(port, purpose="Kafka")
    machine_checks.check_port(port)


def test_an_invalid_port_number_is_reported() -> None:
    with pytest.raises(PreflightError, match=r"Port 70000 of .* is not a port"):
        machine_checks.check_port(70_000)


def test_too_little_memory_reports_both_numbers(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(
        "MemTotal:       16384000 kB\nMemFree:  10 kB\nMemAvailable:    2048000 kB\n"
    )
    machine_checks.check_memory(2000, meminfo)
    with pytest.raises(
        PreflightError, match="2000 MiB of memory are available, but 2001 MiB are needed"
    ):
        machine_checks.check_memory(2001, meminfo)


def test_a_system_without_meminfo_passes(tmp_path: Path) -> None:
    machine_checks.check_memory(2**40, tmp_path / "nothing")


@pytest.mark.parametrize("text", ["org:name:1.0", "org:name:1.0:all:tar.gz"])
def test_the_lock_names_archives_with_their_classifier(text: str) -> None:
    module = Module.parse(text)
    assert str(module) == text
    assert module.file == f"name-1.0.{'tar.gz' if 'all' in text else 'jar'}"


def test_set_up_does_not_download_the_registry() -> None:
    assert Bundle.REGISTRY not in jars.bundles_for_this_machine()
    assert [jar.module.file for jar in jars.read_lock() if jar.bundle is Bundle.REGISTRY] == [
        "apicurio-registry-app-2.6.13.Final.tar.gz"
    ]
