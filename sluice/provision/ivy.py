"""Fetching modules with Apache Ivy, which PySpark brings along: nothing else has to be installed for it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from sluice.errors import PreflightError

SETTINGS = "SLUICE_IVY_SETTINGS"
"""Environment variable that names an ivysettings.xml, where the public repository is not to be asked."""

_TREE = "[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"
# A small program that waits for the network: what makes a server fast makes it slow.
_JVM = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]


@dataclass(frozen=True, order=True)
class Module:
    """What a repository calls a jar."""

    organisation: str
    name: str
    revision: str

    @property
    def file(self) -> str:
        """The jar's file name."""
        return f"{self.name}-{self.revision}.jar"

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.revision}"

    @classmethod
    def parse(cls, text: str) -> Module:
        """Read `organisation:name:revision`; ValueError if it is not that."""
        organisation, name, revision = text.split(":")
        return cls(organisation, name, revision)


def fetch(
    java: Path, modules: Iterable[Module], work: Path, *, transitive: bool, on_jar: Callable[[], None] = lambda: None
) -> dict[Module, Path]:
    """Fetch `modules`, and what they need if `transitive`, into `work`; PreflightError says what is not to be had.

    `work` is a folder of this call's own, Ivy's cache included: two Ivys on one cache spoil it. `on_jar` is
    called as each jar arrives.
    """
    work.mkdir(parents=True)
    description = work / "ivy.xml"
    description.write_text(_description(modules, transitive))
    jars = work / "jars"
    command: list[str | Path] = [java, *_JVM, "-jar", _ivy_jar(), *_settings(), "-cache", work / "cache"]
    command += ["-ivy", description, "-confs", "default", "-types", "jar", "bundle", "-retrieve", f"{jars}/{_TREE}"]
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            said.append(line.strip())
            if "[SUCCESSFUL ]" in line and ".jar" in line:
                on_jar()
    if ivy.returncode:
        raise PreflightError(
            f"Jars could not be fetched: {_reason(said)}.",
            next_step=f"See whether the Maven repository can be reached; {SETTINGS} may name an ivysettings.xml.",
        )
    return {Module(*path.relative_to(jars).parts[:3]): path for path in jars.rglob("*.jar")}


def _description(modules: Iterable[Module], transitive: bool) -> str:
    wanted = "".join(
        f"<dependency org={quoteattr(module.organisation)} name={quoteattr(module.name)} "
        f'rev={quoteattr(module.revision)} transitive="{str(transitive).lower()}" conf="default-&gt;default"/>'
        for module in modules
    )
    return (
        '<ivy-module version="2.0"><info organisation="sluice" module="jars"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{wanted}</dependencies></ivy-module>'
    )


def _ivy_jar() -> Path:
    pyspark = importlib.util.find_spec("pyspark")
    folder = Path(pyspark.origin).parent / "jars" if pyspark and pyspark.origin else None
    if folder is None or not (found := sorted(folder.glob("ivy-*.jar"))):
        raise PreflightError("PySpark, which brings Ivy along, is not installed.", next_step="Run make setup.")
    return found[-1]


def _settings() -> list[str]:
    path = os.environ.get(SETTINGS)
    if path and not Path(path).is_file():
        raise PreflightError(f"{SETTINGS} names {path}, which is not there.", next_step="Correct or unset it.")
    return ["-settings", path] if path else []


def _reason(said: list[str]) -> str:
    """Ivy says a lot; the first line that tells of a missing module or of the network is what matters."""
    telling = [line for line in said if "not found" in line or "Exception" in line or "Host" in line]
    return (telling or said or ["Ivy said nothing"])[0].strip(":. ")
