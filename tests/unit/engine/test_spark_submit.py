"""The command line of spark-submit, and how it is run."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from typing_extensions import override

from sluice import driver
from sluice.errors import SettingsError
from sluice.provision.class_archive import ARCHIVE_OPTIONS, archive_file, class_archive
from sluice.provision.jars import delta_bundle
from sluice.provision.machine_checks import find_java, find_spark
from sluice.settings import Settings
from sluice.spark_submit import (
    APPLICATION,
    ARCHIVING,
    CONNECTION,
    WRITES_ARCHIVE,
    Submission,
    is_local,
    launcher_options,
    package_archive,
    submission,
    without_noise,
)
from sluice.support.processes import has_ended
from tests.support.signals import reset_signals

pytestmark = pytest.mark.unit

PROGRAM = """
import os, sys
print("out")
print("WARNING: Using incubator modules: jdk.incubator.vector", file=sys.stderr)
print(f"error {os.environ['SLUICE_RUN']}", file=sys.stderr)
sys.exit(3)
"""


def test_empty_options_are_omitted() -> None:
    cluster = Submission("spark://host:7077", ("orders", "main"), {}, jars="a.jar,b.jar").command
    assert cluster[1:] == [
        "--master",
        "spark://host:7077",
        "--jars",
        "a.jar,b.jar",
        str(APPLICATION),
        "orders",
        "main",
    ]
    local = Submission(
        "local[2]", ("orders",), {}, driver_class_path="a.jar:b.jar", conf={"spark.a": "b"}
    ).command
    assert local[3:7] == ["--driver-class-path", "a.jar:b.jar", "--conf", "spark.a=b"]
    assert APPLICATION.is_file()


def test_java_finds_the_launcher_without_searching_sparks_jars(tmp_path: Path) -> None:
    spark = find_spark()
    assert spark is not None
    java = [
        str(find_java().path),
        *launcher_options(spark),
        "-cp",
        str(tmp_path),
        "org.apache.spark.launcher.Main",
    ]
    variables = {"SPARK_HOME": str(spark), "SPARK_SCALA_VERSION": "2.13"}
    done = subprocess.run(
        [*java, "org.apache.spark.deploy.SparkSubmit", "orders.py"],
        env=variables,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout.split(b"\0")[-3:-1] == [b"org.apache.spark.deploy.SparkSubmit", b"orders.py"]


def test_a_path_that_sparks_script_would_split_is_no_option_of_the_launcher(tmp_path: Path) -> None:
    for folder in ("a b", "a*"):
        jars = tmp_path / folder / "jars"
        jars.mkdir(parents=True)
        (jars / "spark-launcher_2.13-4.2.0.jar").touch()
        assert launcher_options(jars.parent) == launcher_options(None)


@pytest.mark.parametrize(
    ("master", "release", "folder", "enabled"),
    [
        ("local[2]", "4.2.0", "t", True),
        ("local[2]", "4.10.1", "t", True),
        ("spark://host:7077", "4.2.0", "t", False),
        ("local[2]", "4.1.1", "t", False),
        # The path of a socket would be too long.
        ("local[2]", "4.2.0", "t" * 60, False),
    ],
)
def test_a_local_spark_exchanges_rows_with_python_through_unix_sockets(
    configuration: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    master: str,
    release: str,
    folder: str,
    enabled: bool,
) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / f"spark-launcher_2.13-{release}.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="") as short:
        Path(short, folder).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(Path(short, folder)))
        with submission(configuration, {}, master, ["orders"]) as submitted:
            assert ("spark.python.unix.domain.socket.enabled" in submitted.conf) == enabled


def test_a_driver_that_starts_the_jvm_gives_it_the_options_of_spark_submit(
    configuration: Settings,
) -> None:
    """Only the last argument differs: the JVM starts no driver, but waits for its connection."""
    with submission(configuration, {}, "local[2]", ["orders"]) as submitted:
        variables = submitted.driver_environment
        of_driver = shlex.split(variables["PYSPARK_SUBMIT_ARGS"])
        assert [*of_driver[:-1], str(APPLICATION), "orders"] == submitted.command[1:]
        assert of_driver[-1] == "pyspark-shell"
        assert submitted.driver_command[-1] == "orders"
        assert not Path(variables[CONNECTION]).exists()
        assert Path(variables[CONNECTION]).parent.is_dir()
        # A set of texts has the same order in every driver, whether `sluice run` or Airflow has
        # started it.
        assert variables["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize(
    ("master", "threads"), [("local", 1), ("local[3]", 3), ("local[3, 2]", 3), ("local[*]", 8)]
)
def test_each_of_several_runs_has_the_threads_of_the_master(
    configuration: Settings, monkeypatch: pytest.MonkeyPatch, master: str, threads: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    with submission(configuration, {}, master, [], runs_at_once=4) as submitted:
        assert submitted.master == f"local[{4 * threads}]"
        assert submitted.conf["spark.default.parallelism"] == str(threads)
    with submission(configuration, {}, master, []) as submitted:
        assert submitted.master == master


def test_the_heap_follows_from_the_memory_of_a_run(
    configuration: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def heap(settings: Settings, master: str = "local[2]") -> str | None:
        with submission(settings, {}, master, ["orders"]) as submitted:
            assert submitted.environment["SLUICE_MEMORY"] == f"{settings.memory}m"
            return submitted.conf.get("spark.driver.memory")

    assert heap(configuration) == "512m"
    assert heap(replace(configuration, memory=3_000)) == "1000m"
    assert heap(configuration, "spark://host:7077") is None, (
        "executors send their results to this heap"
    )
    given = {"spark.driver.memory": "2g"}
    assert heap(replace(configuration, spark_conf=given), "spark://host:7077") == "2g"
    monkeypatch.setenv("SPARK_DRIVER_MEMORY", "4g")
    assert heap(configuration) is None, "spark-submit reads the variable"


def test_a_filter_of_standard_error_drops_only_javas_warning(tmp_path: Path) -> None:
    # Pytest's capture would lose what the filter writes while the test looks at it.
    told, kept = tmp_path / "stderr", os.dup(2)
    with told.open("wb") as target:
        os.dup2(target.fileno(), 2)
    try:
        with without_noise():
            subprocess.run([sys.executable, "-c", PROGRAM], env={"SLUICE_RUN": "r1"}, check=False)
        os.write(2, b"after\n")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    deadline = time.monotonic() + 30
    while "error r1\n" not in told.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    # Kafka clients of earlier tests may write to standard error at any time.
    lines = [line for line in told.read_text().splitlines() if "|rdkafka#" not in line]
    assert sorted(lines) == ["after", "error r1"]


@pytest.fixture
def configuration(tmp_path: Path) -> Settings:
    return Settings.read(
        {
            "SLUICE_HOME": str(tmp_path),
            "SLUICE_JARS": str(tmp_path / "jars"),
            "SLUICE_LEDGER": "postgresql://sluice:hidden-word@host/ledger",
            "SLUICE_SERVER_TOKEN": "hidden-word-of-servers",
            "SLUICE_SERVER_CA": "/etc/sluice/ca.pem",
        }
    )


@pytest.mark.parametrize(
    ("name", "default"),
    [("MALLOC_ARENA_MAX", "2"), ("MALLOC_MMAP_THRESHOLD_", "4194304"), ("MIMALLOC_PURGE_DELAY", "10000"),
     ("MIMALLOC_ALLOW_THP", "0")],
)  # fmt: skip
def test_a_run_sets_how_allocators_keep_memory_unless_the_user_decides(
    configuration: Settings, monkeypatch: pytest.MonkeyPatch, name: str, default: str
) -> None:
    def value() -> str:
        with submission(configuration, {}, "local[2]", ["orders"]) as submitted:
            assert submitted.driver_environment[name] == submitted.environment[name]
            return submitted.environment[name]

    monkeypatch.delenv(name, raising=False)
    assert value() == default
    monkeypatch.setenv(name, "4")
    assert value() == "4"


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[2]", True), ("local-cluster[2,1,1024]", False), ("spark://host:7077", False),
     ("yarn", False), ("k8s://https://host:443", False)],
)  # fmt: skip
def test_only_a_local_executor_shares_the_drivers_class_path(
    master: str, local: bool, configuration: Settings
) -> None:
    assert is_local(master) == local
    (configuration.jars / delta_bundle()).mkdir(parents=True)
    (configuration.jars / delta_bundle() / "delta.jar").touch()
    with submission(configuration, {}, master, ["orders"], delta=True) as submitted:
        assert bool(submitted.jars) == bool(submitted.files) == (not local)
        assert ("SPARK_LOCAL_IP" in submitted.environment) == local


def test_the_package_travels_to_executors(configuration: Settings) -> None:
    with submission(configuration, {}, "spark://host:7077", ["orders"]) as submitted:
        names = set(zipfile.ZipFile(submitted.files).namelist())
        assert {
            "sluice/__init__.py",
            "sluice/engine/worker_daemon.py",
            "sluice/state/shard/postgres_driver.py",
        } <= names
        assert submitted.conf["spark.executorEnv.PYTHONPATH"] == Path(submitted.files).name
    assert not Path(submitted.files).exists(), "the archive is removed after the run"


def test_a_task_imports_the_package_from_the_archive(tmp_path: Path) -> None:
    archive = package_archive(tmp_path)
    program = "import sluice.engine.worker_daemon; print(sluice.__file__)"
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program], env={"PYTHONPATH": archive.name}, cwd=tmp_path, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.strip() == f"{archive}/sluice/__init__.py"


def test_executors_get_no_secrets(configuration: Settings) -> None:
    with submission(
        configuration, {"sasl.password": "hidden-word"}, "spark://host:7077", ["orders"]
    ) as submitted:
        assert "hidden-word" not in " ".join(submitted.command)
        variables = {
            name: value
            for name, value in submitted.conf.items()
            if name.startswith("spark.executorEnv.")
        }
        assert variables == {
            "spark.executorEnv.PYTHONPATH": "sluice.zip",
            "spark.executorEnv.SLUICE_SERVER_CA": "/etc/sluice/ca.pem",
        }


def test_libraries_of_a_pipeline_are_found_first(
    configuration: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/own:/other")
    with submission(configuration, {}, "local[2]", ["orders"]) as submitted:
        assert "PYTHONPATH" not in submitted.environment
        assert submitted.environment["SLUICE_LIBRARIES"] == ""
    with_libraries = replace(configuration, libraries=tmp_path)
    with submission(with_libraries, {}, "local[2]", ["orders"]) as submitted:
        assert submitted.environment["PYTHONPATH"] == f"{tmp_path}:/own:/other"
        assert submitted.environment["SLUICE_LIBRARIES"] == str(tmp_path)
        assert "spark.archives" not in submitted.conf


def test_libraries_of_a_pipeline_travel_to_executors(
    configuration: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "hash" / "packages"
    folder.mkdir(parents=True)
    (folder / "tinylib.py").touch()
    own = replace(configuration, libraries=folder, spark_conf={"spark.archives": "data.zip"})
    with submission(own, {}, "spark://host:7077", ["orders"]) as submitted:
        archives = f"data.zip,{folder.parent / 'packages.zip'}#sluice-libraries"
        assert submitted.conf["spark.archives"] == archives
        # The session gives these settings precedence.
        assert json.loads(submitted.environment["SLUICE_SPARK_CONF"])["spark.archives"] == archives
        paths = submitted.conf["spark.executorEnv.PYTHONPATH"]
        assert paths == "sluice.zip:sluice-libraries"


def test_executors_may_have_another_python(
    configuration: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    for master, executors in (("spark://host:7077", "/opt/python"), ("local[2]", sys.executable)):
        with submission(configuration, {}, master, ["orders"]) as submitted:
            assert submitted.environment["PYSPARK_PYTHON"] == executors
            assert submitted.environment["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_the_deploy_mode_cluster_is_refused(configuration: Settings) -> None:
    asking = replace(configuration, spark_conf={"spark.submit.deployMode": "cluster"})
    with (
        pytest.raises(SettingsError, match="only runs in client mode"),
        submission(asking, {}, "spark://host:7077", ["orders"]),
    ):
        pass


@dataclass(frozen=True)
class Program(Submission):
    """A fake program in place of the driver."""

    program: str = PROGRAM

    @property
    @override
    def driver_command(self) -> list[str]:
        return [sys.executable, "-c", self.program]


def test_output_is_forwarded_without_javas_warning(capfd: pytest.CaptureFixture[str]) -> None:
    assert Program("local[2]", (), {"SLUICE_RUN": "r1"}).run() == 3
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("out\n", "error r1\n")


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE, process_group=0)
child.stdout.readline()
print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN, os.getpid(), child.pid, file=sys.stderr, flush=True)
time.sleep(600)
"""
WAITING = """
import sys
import tests.unit.engine.test_spark_submit as tests
from sluice.spark_submit import Interrupted
try:
    tests.Program("local[2]", (), {}, program=tests.STUBBORN).run(patience_s=0.5)
except Interrupted as interrupted:
    print(interrupted, file=sys.stderr)
    sys.exit(128 + interrupted.number)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_all_its_processes_even_if_they_ignore_sigterm(
    number: signal.Signals,
) -> None:
    """As in a run: the JVM's workers are in another process group, so that they do not get the terminal's SIGINT."""
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=reset_signals
    ) as waiting:
        assert waiting.stderr is not None
        ignores_sigint, *pids = waiting.stderr.readline().split()
        started = [psutil.Process(int(pid)) for pid in pids]
        assert ignores_sigint == "True", "PySpark would print a traceback"
        waiting.send_signal(number)
        assert (waiting.wait(30), waiting.stderr.read()) == (
            128 + number,
            f"ended by {number.name}\n",
        )
    deadline = time.monotonic() + 30
    while not all(map(has_ended, started)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(map(has_ended, started))


def test_a_signal_that_this_process_ignores_does_not_end_the_command() -> None:
    """`nohup` ignores SIGHUP."""
    program = "import os, signal, sys; os.kill(os.getppid(), signal.SIGHUP); sys.exit(3)"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert Program("local[2]", (), {}, program=program).run() == 3
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_driver_that_ends_with_status_0_before_it_has_done_everything_has_failed(
    configuration: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    with submission(configuration, {}, "local[2]", ["orders"]) as submitted:
        for code, status in (
            ("import os; os._exit(0)", 1),
            (f"open({str(submitted.finished)!r}, 'w')", 0),
        ):
            driver = Program(
                "local[2]", (), submitted.environment, finished=submitted.finished, program=code
            )
            assert driver.run() == status
            told = capfd.readouterr().err
            assert ("ended with status 0 before the run was complete" in told) == (status == 1)


def test_the_first_run_says_that_it_takes_longer(
    configuration: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    for is_first in (True, False):
        with submission(configuration, {}, "local[2]", ["orders"]) as submitted:
            assert submitted.is_first == is_first
            assert bool(submitted.environment[WRITES_ARCHIVE]) == is_first
            Program("local[2]", (), {"SLUICE_RUN": "r1"}, is_first=submitted.is_first).run()
            assert ("The first run takes" in capfd.readouterr().err) == is_first
            if is_first:
                archive = submitted.conf["spark.driver.extraJavaOptions"].partition(
                    "ArchiveClassesAtExit="
                )[2]
                Path(archive.partition('"')[0]).touch()  # as the JVM does when it exits


@pytest.mark.parametrize("writes", ["1", ""])
def test_the_driver_says_that_the_jvm_writes_the_archive_after_the_run(
    writes: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(WRITES_ARCHIVE, writes)
    assert driver.main(["--unknown"]) == 2
    assert capfd.readouterr().out == (f"{ARCHIVING}\n" if writes else "")


def test_one_run_at_a_time_writes_the_archive_of_classes(tmp_path: Path) -> None:
    """Writing takes 20 seconds of CPU time, which each of several first runs would spend."""
    (jar := tmp_path / "delta.jar").touch()
    with class_archive(tmp_path, [jar]) as first:
        name, _, unfinished = first.partition("=")
        assert name == "-XX:ArchiveClassesAtExit"
        with class_archive(tmp_path, [jar]) as second:
            assert second == "-Xshare:auto"
        Path(unfinished).write_text("classes")
    with class_archive(tmp_path, [jar]) as third:
        name, _, archive = third.partition("=")
        assert name == "-XX:SharedArchiveFile"
        assert Path(archive).read_text() == "classes"


def test_an_archive_belongs_to_a_version_of_spark_and_to_the_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java would not use another one's archive, and so would start slowly every time."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (core := tmp_path / "jars" / "spark-core_2.13-4.2.0.jar").parent.mkdir()
    core.touch()
    (jar := tmp_path / "delta.jar").touch()
    without, with_delta = archive_file(tmp_path, []), archive_file(tmp_path, [jar])
    core.rename(core.with_name("spark-core_2.13-4.2.1.jar"))
    assert (
        len({without, with_delta, archive_file(tmp_path, []), archive_file(tmp_path, [jar])}) == 4
    )


def test_the_unfinished_archive_of_a_run_that_was_killed_is_removed(tmp_path: Path) -> None:
    (jar := tmp_path / "delta.jar").touch()
    with class_archive(tmp_path, [jar]) as option:
        own = Path(option.partition("=")[2])
        (left := own.with_suffix(".1")).write_text("classes")
    with class_archive(tmp_path, [jar]):
        assert not left.exists()


def test_after_a_run_that_wrote_no_archive_the_next_one_may(tmp_path: Path) -> None:
    (jar := tmp_path / "delta.jar").touch()
    for _ in range(2):
        with class_archive(tmp_path, [jar]) as option:
            assert option.startswith("-XX:ArchiveClassesAtExit=")


def test_a_jvm_uses_the_pages_of_its_archive_as_they_are_in_the_file() -> None:
    """At another address, the JVM would copy all pages into memory of its own."""
    command = [str(find_java().path), *ARCHIVE_OPTIONS, "-Xlog:cds=info", "-version"]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Mapped static  region #0" in log
    assert "alternative address" not in log
