"""Download jars with Apache Ivy, which is part of PySpark."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from sluice.errors import PreflightError

_SETTINGS = "SLUICE_IVY_SETTINGS"
"""Environment variable with the path of an ivysettings.xml, for repositories other than Maven
Central."""

_TREE = "[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"
# A short-lived JVM starts faster with C1 only and the serial collector.
_JVM = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]


@dataclass(frozen=True, order=True)
class Module:
    """The coordinates of a jar, or of another archive, in the repository."""

    organisation: str
    name: str
    revision: str
    classifier: str = ""
    extension: str = "jar"

    @property
    def file(self) -> str:
        """File name of the jar."""
        return f"{self.name}-{self.revision}.{self.extension}"

    @property
    def is_archive(self) -> bool:
        """Return whether this is another archive than the module's own jar."""
        return bool(self.classifier) or self.extension != "jar"

    def __str__(self) -> str:
        parts = [self.organisation, self.name, self.revision]
        if self.classifier:
            parts += [self.classifier, self.extension]
        return ":".join(parts)

    @classmethod
    def parse(cls, text: str) -> Module:
        """Parse `organisation:name:revision`, perhaps with `:classifier:extension` after it.

        Raise ValueError for any other form.
        """
        organisation, name, revision, *more = text.split(":")
        if len(more) not in (0, 2):
            raise ValueError(
                f"{text!r} is not organisation:name:revision, with or without :classifier:extension"
            )
        return cls(organisation, name, revision, *more)


def fetch(
    java: Path,
    modules: Collection[Module],
    work: Path,
    *,
    transitive: bool,
    on_jar: Callable[[], None] = lambda: None,
) -> dict[Module, Path]:
    """Download `modules`, with their dependencies if `transitive`, into `work`.

    Each call needs its own `work` folder, because two Ivy processes corrupt a shared cache.
    `on_jar` is called for each downloaded jar. Raise PreflightError with the missing module or the
    cause.
    """
    work.mkdir(parents=True)
    description = work / "ivy.xml"
    description.write_text(_description(modules, transitive))
    jars = work / "jars"
    command: list[str | Path] = [
        java,
        *_JVM,
        "-jar",
        _ivy_jar(),
        *_settings(),
        "-cache",
        work / "cache",
    ]
    command += [
        "-ivy",
        description,
        "-confs",
        "default",
        "-types",
        "jar",
        "bundle",
        "tar.gz",
        "-retrieve",
        f"{jars}/{_TREE}",
    ]
    extensions = {module.extension for module in modules}
    output: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            output.append(line.strip())
            if "[SUCCESSFUL ]" in line and any(f".{each}" in line for each in extensions):
                on_jar()
    if ivy.returncode:
        raise PreflightError(
            f"Cannot download jars: {_reason(output)}.",
            next_step=f"Check that the Maven repository is reachable, or set {_SETTINGS} to an "
            "ivysettings.xml.",
        )
    fetched: dict[Module, Path] = {}
    for path in jars.rglob("*.jar"):
        fetched[Module(*path.relative_to(jars).parts[:3])] = path
    for module in modules:
        if module.is_archive:
            place = jars / module.organisation / module.name / module.revision / module.file
            if place.is_file():
                fetched[module] = place
    return fetched


def _description(modules: Iterable[Module], transitive: bool) -> str:
    dependencies = ""
    for module in modules:
        dependencies += (
            f"<dependency org={quoteattr(module.organisation)} name={quoteattr(module.name)} "
            f'rev={quoteattr(module.revision)} transitive="{str(transitive).lower()}" '
            f'conf="default-&gt;default">{_artifact(module)}</dependency>'
        )
    return (
        f'<ivy-module version="2.0" xmlns:m="{_MAVEN}">'
        '<info organisation="sluice" module="jars"/><configurations>'
        '<conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )


def _artifact(module: Module) -> str:
    """Return the description of an archive that is not the module's jar."""
    if not module.is_archive:
        return ""
    kind = quoteattr(module.extension)
    classifier = f" m:classifier={quoteattr(module.classifier)}" if module.classifier else ""
    return f"<artifact name={quoteattr(module.name)} type={kind} ext={kind}{classifier}/>"


_MAVEN = "http://ant.apache.org/ivy/maven"


def _ivy_jar() -> Path:
    pyspark = importlib.util.find_spec("pyspark")
    versions: list[Path] = []
    if pyspark is not None and pyspark.origin:
        versions = sorted((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar"))
    if not versions:
        raise PreflightError(
            "PySpark, which contains Ivy, is not installed.",
            next_step="Run pip install 'sluice-streams[spark]'.",
        )
    return versions[-1]


def _settings() -> list[str]:
    path = os.environ.get(_SETTINGS)
    if not path:
        return []
    if not Path(path).is_file():
        why = f"{_SETTINGS} is {path}, which does not exist."
        raise PreflightError(why, next_step="Correct or unset the variable.")
    return ["-settings", path]


def _reason(output: list[str]) -> str:
    """Return the first line of Ivy's output about a missing module or a network error."""
    for line in output:
        if "not found" in line or "Exception" in line or "Host" in line:
            return line.strip(":. ")
    return (output or ["Ivy printed nothing"])[0].strip(":. ")
