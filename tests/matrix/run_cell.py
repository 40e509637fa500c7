"""Installs Sluice with the versions of a cell into a bare environment, and tries it there."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import TypeAlias

from sluice.provision.jars import BROKER
from tests.matrix.cells import RESOLVED_UNTIL, Cell

CLONE = Path(__file__).resolve().parents[2]
TESTS = (
    "tests/unit/engine/test_encode.py",
    "tests/unit/engine/test_row_batches.py",
    "tests/unit/engine/test_spark_submit.py",
    "tests/unit/operators/test_processor_operator.py",
    "tests/unit/test_spark_releases.py",
    "tests/dags/test_operator.py",
    "tests/dags/test_kafka_connection.py",
    "tests/upgrades",
)
"""The slice of the tests that a cell runs: Arrow, submission, an operator, the task in Airflow,
kept homes."""
_LEFT_OUT = "not (delta or jars or figures or class_path)"
"""Tests that need Delta Lake's jars, or hash assets, which Airflow 3.1 does not."""
_UNTESTED = "ignore::sluice.provision.supported_versions.UntestedVersion"
"""A release may be tried before the package's ranges have it."""
PARTS = ("install", "airflow", "check", "orders", "tests")
"""The parts of a run, in their order."""
TEST_PACKAGES = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
SEEDED = ("pip", "setuptools", "wheel")
"""The packages with which an environment begins. pip installs libraries of pipelines."""
_LIMIT_S = 2_400.0
_WRITE_LOCK = """
import sys
from sluice.provision.jars import Bundle, broker_roots, write_lock
from sluice.provision.machine_checks import find_java
write_lock(find_java().path, roots={Bundle.BROKER: broker_roots(sys.argv[1])})
"""
"""A program that locks the jars of another broker in the environment's package."""

Command: TypeAlias = list[str | Path]


@dataclass(frozen=True)
class Step:
    """The outcome of a step."""

    part: str
    name: str
    passed: bool
    seconds: float
    said: str
    """The last line of the step's output."""


class StepFailed(Exception):
    """A step has failed, and the later steps need it."""


class CellRun:
    """A cell in a folder of its own below `root`: its environment, logs and results."""

    def __init__(self, cell: Cell, root: Path, uv: Path, wheel: Path, jars: Path) -> None:
        self.cell = cell
        self.folder = root / cell.name
        self.uv, self.wheel = uv, wheel
        self.jars = jars if cell.kafka == BROKER else self.folder / "jars"
        self.environment = self.folder / "venv"
        self.project = self.folder / "project"
        self.steps: list[Step] = []
        self._part = "wheel"

    def run(self, parts: Sequence[str] = PARTS) -> bool:
        """Run parts, and return whether all steps have passed.

        Their output is in files of the folder.

        Without the part `install`, uses the environment and the results of the run before, and
        installs only the wheel again.
        """
        if "install" in parts:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        else:
            self.steps = self._earlier_steps(parts)
        methods: Mapping[str, Callable[[], None]] = {
            "install": self._install,
            "airflow": self._use_airflow,
            "check": self._check,
            "orders": self._run_orders,
            "tests": self._run_tests,
        }
        try:
            if "install" not in parts:
                self._install_again()
            for part in parts:
                self._part = part
                methods[part]()
        except StepFailed:
            pass
        self._write_result()
        return all(step.passed for step in self.steps)

    @property
    def has_passed_all(self) -> bool:
        """Whether all parts have been run and have passed, in this run or in earlier ones."""
        parts = {step.part for step in self.steps}
        return parts >= set(PARTS) and all(step.passed for step in self.steps)

    def remove(self) -> None:
        """Remove the environment and what the cell has written, but not its result."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _earlier_steps(self, parts: Sequence[str]) -> list[Step]:
        """The steps of the run before, without those of the parts that are run now."""
        if not self._result.is_file():
            return []
        steps = [Step(**step) for step in json.loads(self._result.read_text())["steps"]]
        return [step for step in steps if step.part not in (*parts, "wheel")]

    @property
    def _result(self) -> Path:
        return self.folder.parent / "results" / f"{self.cell.name}.json"

    def _install(self) -> None:
        """Install the wheel with the versions of the day on which this Airflow was released."""
        cell = self.cell
        wanted = self.folder / "wanted.in"
        lines = [f"sluice-streams[airflow] @ {self.wheel.as_uri()}"]
        lines += [f"apache-airflow=={cell.airflow}", f"pyspark=={cell.spark}", *TEST_PACKAGES]
        if cell.client:
            lines.append(f"pyspark-client=={cell.client}")
        wanted.write_text("\n".join(lines) + "\n")
        day = f"{RESOLVED_UNTIL[cell.airflow]}T00:00:00Z"
        # Some releases of Spark are newer than these days. Airflow needs neither sqlglot nor the
        # packages of the tests. The errors of msgspec are ValueErrors only since 0.21.
        options: Command = ["--exclude-newer", day]
        for package in ("msgspec", "pyspark", "pyspark-client", "sqlglot", *TEST_PACKAGES):
            options += ["--exclude-newer-package", f"{package}=2099-01-01T00:00:00Z"]
        make: Command = [self.uv, "venv", "--quiet", "--no-python-downloads", "--seed"]
        python = python_of(cell.python, self.uv)
        self._do("environment", [*make, "--python", python, self.environment])
        locked = self.folder / "constraints.txt"
        # Without pyspark-client, there is only one package with PySpark's files.
        overrides = self.folder / "overrides.txt"
        # A release is tried before the package's ranges have it.
        lines = [f"apache-airflow=={cell.airflow}", f"pyspark=={cell.spark}"]
        if not cell.client:
            lines.append("pyspark-client ; python_version < '3'")
        overrides.write_text("\n".join(lines) + "\n")
        pip: Command = [self.uv, "pip"]
        here: Command = ["--python", self._python]
        resolve: Command = [*pip, "compile", "--quiet", *here, *options, "--override", overrides]
        self._do("resolve", [*resolve, wanted, "--output-file", locked])
        install: Command = [*pip, "install", *here]
        self._do("install", [*install, "--no-deps", "--requirement", locked])
        if cell.client not in ("", cell.spark):
            again: Command = ["--reinstall", "--no-deps", f"pyspark=={cell.spark}"]
            self._do("PySpark again", [*install, *again])
        self._download_broker()

    def _install_again(self) -> None:
        install: Command = [self.uv, "pip", "install", "--python", self._python]
        self._do("install", [*install, "--no-deps", "--reinstall", self.wheel])
        self._download_broker()

    def _download_broker(self) -> None:
        """Download the broker's jars, and those that they need, if the broker is not the usual one."""
        if self.cell.kafka == BROKER:
            return
        lock: Command = [self._python, "-c", _WRITE_LOCK, self.cell.kafka]
        self._do("broker's lock", lock)
        jars: Command = [self._python, "-m", "sluice.provision", "jars", "--only", "broker"]
        self._do("broker's jars", jars)

    def _use_airflow(self) -> None:
        """Create a project, and load it into Airflow."""
        for name in ("project", "airflow", "home"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self._do("sluice init", [self._program("sluice"), "init", self.project])
        airflow = self._program("airflow")
        self._do("airflow db", [airflow, "db", "migrate"])
        self._do("airflow db check", [airflow, "db", "check"])
        self._do("plugin", [airflow, "plugins", "-o", "json"], expected='"sluice"')
        self._do("DAGs", [airflow, "dags", "reserialize"])
        self._do("DAG list", [airflow, "dags", "list", "-o", "plain"], expected="visits")
        errors: Command = [airflow, "dags", "list-import-errors", "-o", "plain"]
        self._do("import errors", errors, expected="No data found")

    def _check(self) -> None:
        self._do("sluice check", [self._program("sluice"), "check"], expected="no error")

    def _run_orders(self) -> None:
        """Run the orders pipeline in Airflow on Spark, and compare its results over REST."""
        # The demo takes the DAGs and pipelines of a clone, which are beside the package.
        packages = next((self.environment / "lib").glob("python*/site-packages"))
        for name in ("dags", "plugins", "spark_jobs"):
            shutil.copytree(CLONE / name, packages / name, dirs_exist_ok=True)
        demo: Command = [self._program("sluice"), "demo", "orders", "--exit"]
        self._do("orders", demo, expected="all results are right", required=False)

    def _run_tests(self) -> None:
        """Run a slice of the tests on the installed package, not on the clone."""
        tests = self.folder / "tests-of-clone"
        shutil.rmtree(tests, ignore_errors=True)
        tests.mkdir()
        for name in ("tests", "dags", "plugins", "spark_jobs", "docs"):
            shutil.copytree(CLONE / name, tests / name)
        for name in ("pyproject.toml", "CHANGELOG.md", "README.md"):
            shutil.copy(CLONE / name, tests / name)
        pytest: Command = [self._python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command: Command = [*pytest, "-W", _UNTESTED, "-k", _LEFT_OUT, *TESTS]
        self._do("tests", command, folder=tests, required=False)

    @property
    def _python(self) -> Path:
        return self._program("python")

    def _program(self, name: str) -> Path:
        return self.environment / "bin" / name

    def _do(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        expected: str = "",
        folder: Path | None = None,
        required: bool = True,
    ) -> None:
        """Run a command.

        Raises StepFailed if a required command fails, or does not print what is expected.
        """
        log = self.folder / f"{len(self.steps):02}-{name.replace(' ', '-')}.log"
        began = time.monotonic()
        place = folder or (self.project if self.project.is_dir() else self.folder)
        with log.open("w") as output:
            try:
                status = subprocess.run(
                    [*map(str, command)],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=place,
                    env=self._variables(),
                    timeout=_LIMIT_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                status = -1
        text = log.read_text(errors="replace")
        passed = status == 0 and expected in text
        lines = [line for line in text.splitlines() if line.strip()]
        said = lines[-1].strip() if lines else ""
        self.steps.append(Step(self._part, name, passed, round(time.monotonic() - began, 1), said))
        print(
            f"{self.cell.name}: {name}: {'passed' if passed else f'FAILED, see {log}'}", flush=True
        )
        if required and not passed:
            raise StepFailed(name)

    def _variables(self) -> Mapping[str, str]:
        """The environment of the commands, without what belongs to the clone."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(
                ("AIRFLOW", "SLUICE_", "PYTHON", "VIRTUAL_ENV", "SPARK", "PYSPARK")
            )
        }
        home = self.folder / "airflow"
        path = os.pathsep.join((str(self.environment / "bin"), kept.get("PATH", os.defpath)))
        return kept | {
            "PATH": path,
            "JAVA_HOME": str(java_home(self.cell.java)),
            "SLUICE_HOME": str(self.folder / "home"),
            "SLUICE_JARS": str(self.jars),
            "SLUICE_PIPELINES": str(self.project / "spark_jobs"),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.project / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.project / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(48),
        }

    def _write_result(self) -> None:
        result = {
            "cell": asdict(self.cell),
            "day": date.today().isoformat(),
            "passed": self.has_passed_all,
            "steps": [asdict(step) for step in self.steps],
            "versions": self._versions(),
        }
        self._result.parent.mkdir(exist_ok=True)
        self._result.write_text(json.dumps(result, indent=1) + "\n")

    def _versions(self) -> dict[str, str]:
        """Package → its installed version."""
        listed = subprocess.run(
            [self.uv, "pip", "list", "--format", "json", "--python", self._python],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        try:
            return {package["name"]: package["version"] for package in json.loads(listed.stdout)}
        except ValueError:
            return {}


def java_home(release: int) -> Path | None:
    """The folder of an installed Java release; None if it is not installed.

    JAVA_HOME_21 names it for Java 21.
    """
    if named := os.environ.get(f"JAVA_HOME_{release}"):
        return Path(named)
    for folder in sorted(Path("/usr/lib/jvm").glob(f"*{release}*")):
        if (folder / "bin" / "java").exists():
            return folder
    return None


def missing(cell: Cell, uv: Path) -> str:
    """What a cell needs that this machine does not have; empty if the cell can be run."""
    if java_home(cell.java) is None:
        return f"Java {cell.java} (install it, or set JAVA_HOME_{cell.java} to its folder)"
    return "" if python_of(cell.python, uv) else f"Python {cell.python}"


def python_of(version: str, uv: Path) -> str:
    """The path of an installed Python; empty if it is not installed. uv must not download one."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if pyenv:
        return str(pyenv[-1])
    find: Command = [uv, "python", "find", "--no-python-downloads", version]
    found = subprocess.run(find, capture_output=True, text=True, check=False)
    return found.stdout.strip()
