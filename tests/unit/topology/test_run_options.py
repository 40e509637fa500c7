"""How Airflow runs pipelines: the platform's `sluice.toml`, and those of the teams."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from sluice.errors import SettingsError
from sluice.settings import Settings
from sluice.topology.loading.pipeline_files import pipeline_files
from sluice.topology.loading.pipeline_folders import load_pipelines
from sluice.topology.loading.run_options import DEFAULTS, RunOptions, run_options, unknown_names

PIPELINE = """
from sluice import Pipeline
pipeline = Pipeline("{name}")
pipeline.stream("topic", value=str).group_by_key().count(store="counts")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a pipeline of the platform, `audit`, and one of the team shop, `orders`."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (tmp_path / "audit.py").write_text(PIPELINE.format(name="audit"))
    (shop / "orders.py").write_text(PIPELINE.format(name="orders"))
    (shop / "sluice.toml").touch()
    return tmp_path


def write(file: Path, text: str) -> None:
    file.write_text(dedent(text))


def of_orders(folder: Path) -> RunOptions:
    return run_options(folder, folder / "shop" / "orders.py", "orders")


def test_without_files_sluices_defaults_apply(tmp_path: Path) -> None:
    assert run_options(tmp_path, tmp_path / "audit.py", "audit") == DEFAULTS


def test_a_folder_with_a_file_is_a_teams_folder(folder: Path) -> None:
    (folder / "helpers").mkdir()
    (folder / "helpers" / "texts.py").write_text("raise ValueError")
    assert pipeline_files(folder) == [folder / "audit.py", folder / "shop" / "orders.py"]
    loaded = load_pipelines(folder)
    assert not loaded.broken
    assert [pipeline.name for pipeline in loaded.pipelines] == ["audit", "orders"]


def test_a_teams_file_counts_more_than_the_platforms(folder: Path) -> None:
    write(
        folder / "sluice.toml",
        """
        [defaults]
        owner = "platform"
        pool = "shared"
        tags = ["production"]
        spark_conf = {"spark.a" = "1", "spark.b" = "1"}
        """,
    )
    write(
        folder / "shop" / "sluice.toml",
        """
        [defaults]
        owner = "shop"
        tags = ["shop"]
        retries = 4
        spark_conf = {"spark.b" = "2"}

        [pipelines.orders]
        retries = 0
        memory = "4g"
        timeout = "90 minutes"
        """,
    )
    options = of_orders(folder)
    assert options == RunOptions(
        owner="shop",
        pool="shared",
        tags=("production", "shop"),
        retries=0,
        memory="4g",
        timeout="90 minutes",
        spark_conf={"spark.a": "1", "spark.b": "2"},
    )
    assert (options.timeout_ms, options.memory_mb) == (5_400_000, 4_000)
    audit = run_options(folder, folder / "audit.py", "audit")
    assert (audit.owner, audit.retries, audit.memory) == ("platform", DEFAULTS.retries, None)


def test_options_change_the_settings_of_a_run() -> None:
    settings = Settings.read({"SLUICE_SPARK_CONF": '{"spark.a": "1"}', "SLUICE_MEMORY": "2g"})
    changed = RunOptions(memory="4g", spark_conf={"spark.b": "2"}).applied_to(settings)
    assert (changed.memory, changed.spark_conf) == (4_000, {"spark.a": "1", "spark.b": "2"})
    assert RunOptions().applied_to(settings) == settings


@pytest.mark.parametrize(
    ("limit", "given", "error"),
    [
        ('memory = "4g"', 'memory = "5g"', "the memory 5g, but at most 4g is allowed"),
        ('timeout = "1 hour"', 'timeout = "2 hours"', "the timeout 2 hours, but at most 1 hour"),
        ("retries = 3", "retries = 4", "the retries 4, but at most 3 is allowed"),
        ("priority = 5", "priority = 6", "the priority 6, but at most 5 is allowed"),
        ('pools = ["shop"]', 'pool = "all"', "the pool all, but only shop is allowed"),
        ("queues = []", 'queue = "gpu"', "the queue gpu, but only none is allowed"),
        (
            'spark_connections = ["small"]',
            'spark_connection = "large"',
            "the spark_connection large, but only small is allowed",
        ),
        (
            'requirements = ["prices"]',
            'requirements = "libraries.txt"',
            "requirements, but only prices may have its own libraries",
        ),
    ],
)
def test_a_team_cannot_exceed_the_platforms_limits(
    folder: Path, limit: str, given: str, error: str
) -> None:
    write(folder / "shop" / "sluice.toml", f"[pipelines.orders]\n{given}")
    write(folder / "sluice.toml", f"[limits]\n{limit}")
    with pytest.raises(SettingsError, match=f"the pipeline orders has {error}") as raised:
        of_orders(folder)
    assert "may_exceed" in (raised.value.next_step or "")
    write(folder / "sluice.toml", f'[limits]\n{limit}\nmay_exceed = ["orders"]')
    of_orders(folder)


def test_a_team_may_have_limits_of_its_own(folder: Path) -> None:
    write(
        folder / "sluice.toml",
        """
        [limits]
        memory = "4g"
        retries = 1
        may_exceed = ["audit"]

        [limits.teams.shop]
        memory = "8g"
        """,
    )
    write(folder / "shop" / "sluice.toml", '[defaults]\nmemory = "8g"')
    options = of_orders(folder)
    assert (options.memory, options.retries) == ("8g", 1)
    write(folder / "shop" / "sluice.toml", '[defaults]\nmemory = "9g"')
    with pytest.raises(SettingsError, match="but at most 8g is allowed") as raised:
        of_orders(folder)
    assert "[limits.teams.shop]" in (raised.value.next_step or "")

    # The team's limits do not apply to the pipelines of other teams.
    web = folder / "web"
    web.mkdir()
    write(web / "sluice.toml", '[defaults]\nmemory = "8g"')
    with pytest.raises(SettingsError, match="but at most 4g is allowed"):
        run_options(folder, web / "pages.py", "pages")


def test_a_teams_limits_may_name_further_pipelines_without_limits(folder: Path) -> None:
    write(
        folder / "sluice.toml",
        """
        [limits]
        retries = 1
        may_exceed = ["audit"]
        teams.shop = {may_exceed = ["orders"]}
        """,
    )
    write(folder / "shop" / "sluice.toml", "[defaults]\nretries = 5")
    assert of_orders(folder).retries == 5


def test_limits_of_a_team_without_a_folder_are_pointed_out(folder: Path) -> None:
    write(folder / "sluice.toml", '[limits.teams.shops]\nmay_exceed = ["order"]')
    assert unknown_names(folder, ["audit", "orders"]) == [
        f"{folder / 'sluice.toml'} names the pipeline order, which no file defines.",
        f"{folder / 'sluice.toml'} has limits for the team shops, but there is no "
        f"{folder / 'shops' / 'sluice.toml'}.",
    ]


def test_sluices_defaults_give_way_to_lower_limits(folder: Path) -> None:
    write(folder / "sluice.toml", '[limits]\nretries = 1\ntimeout = "1 hour"\nmemory = "8g"')
    options = of_orders(folder)
    assert (options.retries, options.timeout, options.memory) == (1, "1 hour", None)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[defaults]\nowners = 'shop'", "unknown field `owners`"),
        ("[defaults]\nretries = -1", "Expected `int` >= 0"),
        ("[defaults]\nretries = '3'", "Expected `int | null`, got `str`"),
        ("[defaults]\ntimeout = '2'", "timeout in \\[defaults\\] is '2'"),
        ("[defaults]\ntimeout = '10 ms'", "timeout in \\[defaults\\] is '10 ms'"),
        ("[limits.teams.shop]\nmemory = '1g'", "memory in \\[limits.teams.shop\\] is '1g'"),
        ("[limits.teams.shop.teams.web]\nretries = 1", "has limits for teams"),
        ("[pipelines.orders]\nmemory = '1g'", "memory in \\[pipelines.orders\\] is '1g'"),
        ("[defaults]\non_failure = 'page'", "on_failure in \\[defaults\\] is 'page'"),
        ("[default]", "unknown field `default`"),
        ("owner = ", "Invalid value"),
        ("[limits]\nretries = 1", "a team's file has no limits"),
    ],
)
def test_mistakes_are_errors_with_the_files_path(folder: Path, text: str, error: str) -> None:
    file = folder / "shop" / "sluice.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=error) as raised:
        of_orders(folder)
    assert str(file) in str(raised.value)


def test_names_that_no_pipeline_has_are_reported(folder: Path) -> None:
    write(folder / "sluice.toml", "[limits]\nmay_exceed = ['sales']\nrequirements = ['stock']")
    write(folder / "shop" / "sluice.toml", "[pipelines.order]\nretries = 1")
    warnings = unknown_names(folder, ["audit", "orders"])
    assert [warning.split("names the pipeline ")[1] for warning in warnings] == [
        "sales, which no file defines.",
        "stock, which no file defines.",
        "order, which no file defines.",
    ]


def test_the_text_does_not_show_spark_settings() -> None:
    options = RunOptions(owner="shop", tags=("a", "b"), spark_conf={"spark.password": "1234"})
    assert options.as_text() == "owner: shop\ntags: a, b\nspark_conf: spark.password"


def test_a_pipeline_may_use_a_warm_driver_or_not(tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text(
        '[defaults]\nwarm = "start"\n[pipelines.training]\nwarm = "off"\n'
    )
    settings = Settings.read({"SLUICE_WARM": "use"})
    for pipeline, warm in (("orders", "start"), ("training", "off")):
        assert run_options(tmp_path, None, pipeline).applied_to(settings).warm == warm
    assert RunOptions().applied_to(settings).warm == "use"
