"""Pages name the versions that docs/versions.md lists, and this page only lists versions that have been tried."""

from __future__ import annotations

import re
import tomllib

import pytest

from sluice.commands.constraints_command import constraints_text
from sluice.provision.jars import BROKER
from sluice.provision.machine_checks import OLDEST_JAVA
from sluice.provision.supported_versions import PYTHON, RANGES, Range, release_of
from tests.docs.pages import read
from tests.docs.test_links import PAGES
from tests.matrix.table import rows_of

PAGE = "docs/versions.md"
TEMPLATE = "sluice/commands/template/README.md"
COLUMNS = {"Airflow": 0, "Spark": 1, "Python": 2, "Java": 3, "Kafka brokers": 4}
"""Program → its column in the table of combinations."""
_SAYS_OLDEST = re.compile(r"\b(Python|Java) (\d+(?:\.\d+)?) or\s+newer")


def listed(page: str) -> dict[str, str]:
    """The table of supported versions on a page: program → its releases."""
    _, _, after = read(page).partition("| program | versions |\n")
    rows: dict[str, str] = {}
    for line in after.splitlines()[1:]:
        if not line.startswith("| "):
            break
        program, releases = line.strip("| ").split(" | ")
        rows[program] = releases
    return rows


def passed() -> list[tuple[str, ...]]:
    """The combinations of `make matrix` of which all parts have passed."""
    _, _, after = read(PAGE).partition("<!-- Written by")
    rows = rows_of(after.partition("<!-- End -->")[0])
    return [row for row in rows if set(row[5:-1]) == {"passes"}]


def development() -> tuple[str, ...]:
    """The combination with which CI runs all tests."""
    versions: dict[str, str] = {}
    for line in read("requirements.txt").splitlines():
        name, _, rest = line.partition("==")
        versions[name] = rest.partition(" ")[0]
    return (versions["apache-airflow"], versions["pyspark"], "3.11", str(OLDEST_JAVA), BROKER)


def test_the_readme_has_the_same_versions() -> None:
    assert listed("README.md") == listed(PAGE)
    assert listed(PAGE).keys() == COLUMNS.keys()


@pytest.mark.parametrize("versions", RANGES, ids=lambda versions: versions.program)
def test_the_page_has_the_ranges_of_the_checks(versions: Range) -> None:
    (major, first), (_, last) = versions.first, versions.last
    releases = [f"{major}.{minor}" for minor in range(first, last + 1)]
    assert listed(PAGE)[versions.program] == ", ".join(releases)


@pytest.mark.parametrize("program", COLUMNS)
def test_each_listed_release_has_been_tried(program: str) -> None:
    tried: set[str] = set()
    for row in (*passed(), development()):
        version = row[COLUMNS[program]].partition(",")[0]
        release = release_of(version)
        tried.add(version if program == "Java" else f"{release[0]}.{release[1]}")
    assert set(listed(PAGE)[program].split(", ")) <= tried


@pytest.mark.parametrize("release", listed(PAGE)["Airflow"].split(", "))
def test_constraints_are_those_of_a_combination_that_has_passed(release: str) -> None:
    lines = constraints_text(release).splitlines()[1:]
    versions = dict(line.split("==") for line in lines)
    combination = (versions["apache-airflow"], versions["pyspark"])
    assert combination in [(row[0], row[1].partition(",")[0]) for row in passed()]


@pytest.mark.parametrize("page", [*PAGES, TEMPLATE])
def test_each_page_names_the_oldest_python_and_java(page: str) -> None:
    oldest = {"Python": f"{PYTHON.first[0]}.{PYTHON.first[1]}", "Java": str(OLDEST_JAVA)}
    for program, version in _SAYS_OLDEST.findall(read(page)):
        assert version == oldest[program], f"{page} says {program} {version} or newer"


def test_the_package_needs_the_oldest_python() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    assert project["requires-python"] == f">={PYTHON.first[0]}.{PYTHON.first[1]}"
