"""How Airflow runs pipelines, from the files `sluice.toml`.

The platform's file is in the folder of the pipelines. A subfolder with another `sluice.toml` is a
team's folder: its files are pipelines, too, and this `sluice.toml` says how they run.

```toml
[defaults]                  # of the pipelines in this folder
owner = "shop"
tags = ["shop"]
pool = "shop"
retries = 4

[pipelines.orders]          # of one pipeline
memory = "4g"
timeout = "6 hours"

[limits]                    # only in the platform's file
memory = "8g"
pools = ["shop", "default_pool"]
may_exceed = ["orders"]

[limits.teams.shop]         # in place of these limits, for the pipelines in the folder `shop`
memory = "16g"
```
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from sluice.errors import SettingsError, TopologyError
from sluice.settings import LEAST_MEMORY_MB, Settings, megabytes
from sluice.topology.durations import milliseconds
from sluice.topology.loading.declared_names import declared_names
from sluice.values.budgets import Allowance, Budget
from sluice.values.sink_tables import connection_variable

if TYPE_CHECKING:
    from sluice.provision.libraries import Libraries

FILE = "sluice.toml"
OWNER = "sluice"
"""The default owner of pipelines in Airflow."""
_TEAM_FILES = f"*/{FILE}"
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_KNOWN = "docs/how-to/teams.md lists the names."

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Airflow runs a pipeline. None means the default of Sluice or of the settings."""

    owner: Name | None = None
    tags: tuple[Name, ...] = ()
    pool: Name | None = None
    queue: Name | None = None
    """The queue of an executor with several kinds of workers, such as Celery's."""
    priority: Count | None = None
    """Airflow's `priority_weight`."""
    retries: Count | None = None
    timeout: str | None = None
    """The longest duration of an attempt, such as `"2 hours"`."""
    memory: str | None = None
    """The memory of a run, such as `"4g"`, as in SLUICE_MEMORY."""
    warm: Literal["off", "use", "start"] | None = None
    """Whether runs use and start warm drivers; the same values as SLUICE_WARM."""
    spark_connection: Name | None = None
    """Airflow's connection with the Spark master."""
    spark_conf: dict[str, str] = {}  # msgspec copies the default
    """Spark settings, beside those in SLUICE_SPARK_CONF."""
    requirements: str | None = None
    """The path of a file with the pipeline's own libraries: for pip, or an archive of packages."""
    kafka_connection: Name | None = None
    """Airflow's connection with the pipeline's Kafka cluster, or the NAME of SLUICE_KAFKA_NAME."""
    shards_connection: Name | None = None
    """Airflow's connection with the PostgreSQL database for the pipeline's shards, or the NAME of
    SLUICE_CONNECTION_NAME."""
    executor_config: dict[str, Any] = {}  # msgspec copies the default
    """Airflow's `executor_config` of the task, such as a template of its pod."""
    budget: Budget | None = None
    """The limit of what the pipeline's runs may cost per day."""
    on_failure: str | None = None
    """The import path of a function that Airflow calls with its context when a run has failed."""

    def over(self, others: RunOptions) -> RunOptions:
        """Return these options, with those of `others` in place of options that are None.

        Tags, Spark settings and settings of the executor are added to the ones in `others`.
        """
        given: dict[str, object] = {}
        for name in self.__struct_fields__:
            if getattr(self, name) is not None:
                given[name] = getattr(self, name)
        given["tags"] = tuple(dict.fromkeys((*others.tags, *self.tags)))
        given["spark_conf"] = others.spark_conf | self.spark_conf
        given["executor_config"] = others.executor_config | self.executor_config
        return msgspec.structs.replace(others, **given)

    @property
    def timeout_ms(self) -> int | None:
        if self.timeout is None:
            return None
        return milliseconds(self.timeout)

    @property
    def memory_mb(self) -> int | None:
        if self.memory is None:
            return None
        return _memory(self.memory)

    def libraries(self, home: Path) -> Libraries | None:
        """Return the pipeline's own libraries in a home (SLUICE_HOME); None if it has none."""
        if not self.requirements:
            return None
        # Few pipelines have their own libraries, and this import takes 20 ms.
        from sluice.provision.libraries import Libraries

        return Libraries(Path(self.requirements), home)

    def applied_to(self, settings: Settings) -> Settings:
        """Return the settings of a run with these options."""
        memory = self.memory_mb or settings.memory
        return replace(
            settings,
            memory=memory,
            spark_conf=settings.spark_conf | self.spark_conf,
            warm=self.warm or settings.warm,
        )

    def with_connections(self, settings: Settings) -> Settings:
        """Return the settings with this pipeline's connections, read from the environment.

        Raise SettingsError if the environment lacks one of the connections.
        """
        if self.kafka_connection is not None:
            settings = replace(settings, kafka=settings.kafka_of(self.kafka_connection))
        if self.shards_connection is not None:
            variable = connection_variable(self.shards_connection)
            if variable not in settings.connections:
                raise SettingsError(
                    f"There is no connection {self.shards_connection!r} for shards.",
                    next_step=f"Set {variable} to postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
                )
            settings = replace(settings, shards=settings.connections[variable])
        return settings

    def as_text(self) -> str:
        """Return the options that are given, a line each."""
        lines: list[str] = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in ("spark_conf", "executor_config"):
                # The values may be secrets.
                value = list(value)
            if isinstance(value, Budget):
                value = str(value)
            if isinstance(value, (tuple, list)):
                value = ", ".join(value)
            if value not in (None, ""):
                lines.append(f"{name}: {value}")
        return "\n".join(lines)


DEFAULTS = RunOptions(owner=OWNER, retries=2, timeout="2 hours")


class _Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The platform's limits for the options that teams may set in their files."""

    priority: Count | None = None
    retries: Count | None = None
    timeout: str | None = None
    memory: str | None = None
    pools: tuple[Name, ...] | None = None
    queues: tuple[Name, ...] | None = None
    spark_connections: tuple[Name, ...] | None = None
    kafka_connections: tuple[Name, ...] | None = None
    shards_connections: tuple[Name, ...] | None = None
    requirements: tuple[Name, ...] | None = None
    """The pipelines that may have their own libraries; None if all may."""
    may_exceed: tuple[Name, ...] = ()
    """The pipelines to which the limits do not apply."""
    teams: dict[Name, _Limits] = {}  # msgspec copies the default
    """Folder of a team → the limits that differ for its pipelines."""

    def of_team(self, folder: str) -> _Limits:
        """Return the limits for the pipelines in a team's folder.

        Limits that are not given for the team are the limits of all teams.
        """
        own = self.teams.get(folder)
        if own is None:
            return self
        given: dict[str, object] = {}
        for name in own.__struct_fields__:
            value = getattr(own, name)
            if value is not None:
                given[name] = value
        given["may_exceed"] = self.may_exceed + own.may_exceed
        return msgspec.structs.replace(self, **given)


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a `sluice.toml`."""

    defaults: RunOptions = RunOptions()
    pipelines: dict[str, RunOptions] = {}  # msgspec copies the default
    budget: Budget | None = None
    """The limit of what the runs of all pipelines in the folder may cost per day, in total. In the
    platform's file, this budget limits the runs of all teams."""
    limits: _Limits | None = None

    def options(self, pipeline: str) -> RunOptions:
        return self.pipelines.get(pipeline, RunOptions()).over(self.defaults)

    def limits_of(self, team: Path | None) -> _Limits:
        """Return the limits for pipelines in a team's folder; None for the platform's own."""
        limits = self.limits or _Limits()
        return limits if team is None else limits.of_team(team.name)


def pipeline_folders(folder: Path) -> list[Path]:
    """Return the folders of pipelines: `folder`, and the folders of teams in it, sorted by name."""
    return [folder, *sorted(file.parent for file in folder.glob(_TEAM_FILES))]


def run_options(folder: Path, file: Path | None, pipeline: str) -> RunOptions:
    """Return the options of the pipeline in `file`, which is in `folder` or in a team's folder.

    Without a file, only the platform's `sluice.toml` counts. A team's `sluice.toml` overrides the
    platform's. In each file, the options of a single pipeline override the defaults. Raise
    SettingsError if a `sluice.toml` is invalid, or if an option exceeds a limit of the platform.
    """
    platform, team = _read(folder / FILE), _team_folder(folder, file)
    limits = platform.limits_of(team)
    options = _unlimited(platform, folder, team, pipeline)
    if pipeline in limits.may_exceed:
        return options
    for exceeded in _exceeded(options, limits, pipeline):
        place = folder / FILE
        allowance = "may_exceed in [limits]"
        if team is not None:
            place = team / FILE
            allowance += f" or another limit in [limits.teams.{team.name}]"
        raise SettingsError(
            f"{place}: the pipeline {pipeline} has {exceeded}.",
            next_step="Correct the file, or ask the platform's team to allow it in "
            f"{folder / FILE}, with {allowance}.",
        )
    return options


def unlimited_options(folder: Path, file: Path | None, pipeline: str) -> RunOptions:
    """Like `run_options`, but also return options that exceed a limit of the platform.

    A pipeline that exceeds a limit does not run, but still has the owner that its file names.
    """
    return _unlimited(_read(folder / FILE), folder, _team_folder(folder, file), pipeline)


def _unlimited(platform: _File, folder: Path, team: Path | None, pipeline: str) -> RunOptions:
    """Return a pipeline's options, given the content of the platform's `sluice.toml`."""
    options = platform.options(pipeline).over(_lowered_defaults(platform.limits_of(team)))
    if team is None:
        return options
    of_team = _read(team / FILE)
    if of_team.limits is not None:
        raise SettingsError(
            f"{team / FILE}: a team's file has no limits.",
            next_step=f"Move [limits] to the platform's file, {folder / FILE}.",
        )
    return of_team.options(pipeline).over(options)


def _team_folder(folder: Path, file: Path | None) -> Path | None:
    """Return the folder of the team that owns `file`; None if the file is the platform's."""
    if file is None or file.parent == folder:
        return None
    return file.parent


def allowances(folder: Path, file: Path | None, pipeline: str) -> list[Allowance]:
    """Return the budgets that limit a pipeline's runs: its own, its team's and the platform's.

    Raise SettingsError if a `sluice.toml` is invalid.
    """
    own = run_options(folder, file, pipeline).budget
    granted = [] if own is None else [Allowance(own, pipeline, frozenset({pipeline}))]
    if (team := _team_folder(folder, file)) is not None:
        of_team = _read(team / FILE).budget
        if of_team is not None:
            names: set[str] = {pipeline}
            for each in team.glob("*.py"):
                names.update(declared_names(each))
            whose = f"The pipelines of {team.name}"
            granted.append(Allowance(of_team, whose, frozenset(names)))
    of_all = _read(folder / FILE).budget
    if of_all is not None:
        granted.append(Allowance(of_all, "All pipelines", None))
    return granted


def unknown_names(folder: Path, pipelines: Iterable[str]) -> list[str]:
    """Return a warning for each name in the files that is not the name of a pipeline."""
    known = {*pipelines}
    warnings: list[str] = []
    for place in (parent / FILE for parent in pipeline_folders(folder)):
        content = _read(place)
        limits = content.limits or _Limits()
        allowed: list[str] = []
        for each in (limits, *limits.teams.values()):
            allowed += [*each.may_exceed, *(each.requirements or ())]
        for name in dict.fromkeys((*content.pipelines, *allowed)):
            if name not in known:
                warnings.append(f"{place} names the pipeline {name}, which no file defines.")
        for team in limits.teams:
            file = folder / team / FILE
            if not file.is_file():
                warnings.append(f"{place} has limits for the team {team}, but there is no {file}.")
    return warnings


def _read(file: Path) -> _File:
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return _File()
    except OSError as error:
        raise SettingsError(
            f"{file} cannot be read: {error.strerror}.",
            next_step="Let the users who run Airflow and Sluice read it.",
        ) from None
    try:
        content = msgspec.toml.decode(text, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: {error}.", next_step=f"Correct the file. {_KNOWN}") from None
    _require_valid(file, content)
    pipelines = {
        name: _with_whole_path(options, file) for name, options in content.pipelines.items()
    }
    defaults = _with_whole_path(content.defaults, file)
    return msgspec.structs.replace(content, defaults=defaults, pipelines=pipelines)


def _with_whole_path(options: RunOptions, file: Path) -> RunOptions:
    """Return the options, with the requirements' path completed by the folder of `file`.

    Empty requirements stay empty: the pipeline has no libraries, even if the defaults name some.
    """
    if not options.requirements:
        return options
    path = file.parent.absolute() / options.requirements
    return msgspec.structs.replace(options, requirements=str(path))


def _require_valid(file: Path, content: _File) -> None:
    parts = {"[defaults]": content.defaults}
    parts |= {f"[pipelines.{name}]": options for name, options in content.pipelines.items()}
    for where, options in parts.items():
        if options.on_failure is not None and not _FUNCTION.fullmatch(options.on_failure):
            raise SettingsError(
                f"{file}: on_failure in {where} is {options.on_failure[:60]!r}.",
                next_step='Write the import path of a function, such as "shop_alerts.page".',
            )
    durations: dict[str, RunOptions | _Limits] = {**parts}
    if content.limits is not None:
        durations["[limits]"] = content.limits
        for team, limits in content.limits.teams.items():
            durations[f"[limits.teams.{team}]"] = limits
            if limits.teams:
                raise SettingsError(
                    f"{file}: [limits.teams.{team}] has limits for teams.",
                    next_step="Write a table [limits.teams.NAME] for each team.",
                )
    for where, given in durations.items():
        _require_units(file, where, given)


def _require_units(file: Path, where: str, given: RunOptions | _Limits) -> None:
    try:
        is_short = given.timeout is not None and milliseconds(given.timeout) < 1_000
    except TopologyError:
        is_short = True
    if is_short:
        raise SettingsError(
            f"{file}: timeout in {where} is {str(given.timeout)[:60]!r}.",
            next_step='Write a duration of at least a second, such as "2 hours".',
        )
    try:
        if given.memory is not None:
            _memory(given.memory)
    except SettingsError:
        raise SettingsError(
            f"{file}: memory in {where} is {str(given.memory)[:60]!r}.",
            next_step=f"Write at least {LEAST_MEMORY_MB}m, such as 4g.",
        ) from None


def _lowered_defaults(limits: _Limits) -> RunOptions:
    """Return Sluice's defaults, but lower the ones that exceed a limit of the platform."""
    lower: dict[str, object] = {}
    if limits.retries is not None and limits.retries < (DEFAULTS.retries or 0):
        lower["retries"] = limits.retries
    if limits.timeout is not None and milliseconds(limits.timeout) < (DEFAULTS.timeout_ms or 0):
        lower["timeout"] = limits.timeout
    return msgspec.structs.replace(DEFAULTS, **lower)


def _exceeded(options: RunOptions, limits: _Limits, pipeline: str) -> Iterator[str]:
    """Yield a text for each option of a pipeline that exceeds a limit."""
    amounts: tuple[tuple[str, Any, Any, Callable[[Any], int]], ...] = (
        ("priority", options.priority, limits.priority, int),
        ("retries", options.retries, limits.retries, int),
        ("timeout", options.timeout, limits.timeout, milliseconds),
        ("memory", options.memory, limits.memory, _memory),
    )
    for name, value, limit, number in amounts:
        if value is not None and limit is not None and number(value) > number(limit):
            yield f"the {name} {value}, but at most {limit} is allowed"
    choices = (
        ("pool", options.pool, limits.pools),
        ("queue", options.queue, limits.queues),
        ("spark_connection", options.spark_connection, limits.spark_connections),
        ("kafka_connection", options.kafka_connection, limits.kafka_connections),
        ("shards_connection", options.shards_connection, limits.shards_connections),
    )
    for name, choice, allowed in choices:
        if choice is not None and allowed is not None and choice not in allowed:
            yield f"the {name} {choice}, but only {', '.join(allowed) or 'none'} is allowed"
    with_libraries = limits.requirements
    if options.requirements and with_libraries is not None and pipeline not in with_libraries:
        allowed_pipelines = ", ".join(with_libraries) or "no pipeline"
        yield f"requirements, but only {allowed_pipelines} may have its own libraries"


def _memory(text: str) -> int:
    return megabytes("memory", text)
