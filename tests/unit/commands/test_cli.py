"""Output and errors of the command `sluice`."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from sluice import __version__
from sluice.commands.cli import app
from sluice.errors import DiskNearlyFull, EngineError
from sluice.kafka import token_endpoint
from sluice.kafka.unread_records import Lag
from sluice.plan import plan
from sluice.settings import settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger
from sluice.topology import load_pipelines
from tests.support.states import States
from tests.support.token_server import CLIENT_SECRET, TokenServer

ROOT = Path(__file__).parents[3]


def sluice(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_help_lists_the_commands() -> None:
    said = sluice("--help").output
    assert all(
        command in said for command in ("demo", "explain", "describe", "run", "produce", "kafka")
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("explain", "orders"),
            "holds   by locationId: general_orders_count, general_orders_revenue",
        ),
        (("describe", "orders"), "stream orders: Order"),
        (("describe", "orders", "--svg"), "<svg "),
        (("kafka", "stop"), "No broker is running."),
    ],
)
def test_a_command_prints_this(arguments: tuple[str, ...], expected: str) -> None:
    result = sluice(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert expected in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("explain", "nothing"), "There is no pipeline 'nothing'"),
        (("run", "nothing"), "There is no pipeline 'nothing'"),
        (("generations", "list", "nothing"), "The ledger has no pipeline 'nothing'"),
        (("produce", "orders", "--start", "soon"), "--start 'soon' is not a time."),
        (("produce", "products", "--start", "soon"), "--start 'soon' is not a time."),
    ],
)
def test_mistakes_are_reported_with_the_next_step(
    arguments: tuple[str, ...], expected: str
) -> None:
    result = sluice(*arguments)
    assert result.exit_code == 1
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 2, "the error and the next step"
    assert "Traceback" not in result.output


@pytest.mark.parametrize("number", ["1_000", " 5 ", "\uff15", "+5", "1e3", "0x10", "nan"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("query", "top", "totals", "--limit"),
        ("produce", "orders", "--count"),
        ("produce", "orders", "--bad"),
    ],
)
def test_numbers_are_written_in_plain_digits(arguments: tuple[str, ...], number: str) -> None:
    result = sluice(*arguments, number)
    assert result.exit_code == 2
    assert "is not a number" in result.stderr


def test_help_loads_nothing_heavy() -> None:
    heavy = "{'airflow', 'pyspark', 'confluent_kafka', 'sqlalchemy', 'pandas', 'httpx'}"
    code = f"import sys; import sluice.commands.cli; print(*{heavy} & set(sys.modules))"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == ""


def test_a_run_loads_only_what_its_start_needs() -> None:
    heavy = "{'pydantic', 'sqlalchemy', 'pyspark'}"
    code = (
        "import sys; from sluice.commands.cli import app\n"
        f"try: app(['run', 'nothing'])\nfinally: print(*{heavy} & set(sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "There is no pipeline 'nothing'" in process.stderr
    assert process.stdout.strip() == ""


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pipelines, one of them broken."""
    orders = Path(__file__).parents[3] / "spark_jobs" / "orders.py"
    (tmp_path / "orders.py").write_text(orders.read_text())
    (tmp_path / "exits.py").write_text("import sys; sys.exit('not here')")
    (tmp_path / "fraud.py").write_text("from sluice import Pipeline\npipeline = Pipeline('fraud'")
    (tmp_path / "iot.py").write_text(
        "from sluice import Pipeline\nimport nothing_like_this\npipeline = Pipeline('iot')"
    )
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    settings.cache_clear()


@pytest.mark.usefixtures("others")
def test_status_lists_failed_and_broken_pipelines() -> None:
    with Ledger.open(settings().ledger) as ledger:
        ledger.failures.keep(Failure.of(EngineError("[Kafka] is away."), "orders", run="r1"))
    said = sluice("status")
    assert said.exit_code == 1
    table = [line.split()[:2] for line in said.stdout.splitlines()[1:5]]
    assert table == [
        ["exits", "broken"],
        ["fraud", "broken"],
        ["iot", "broken"],
        ["orders", "failed"],
    ]
    assert re.search(r"✗ iot, since .* UTC: .*iot.py:2 cannot be imported", said.stdout)
    assert re.search(
        r"orders, since .* UTC, run r1: The run stopped. \[Kafka\] is away\.", said.stdout
    )


@pytest.mark.usefixtures("others")
def test_status_of_one_pipeline() -> None:
    with Ledger.open(settings().ledger) as ledger:
        ledger.failures.keep(Failure.of(EngineError("[Kafka] is away."), "orders", run="r1"))
    said = sluice("status", "orders")
    assert said.exit_code == 1
    assert [line.split()[:2] for line in said.stdout.splitlines()[1:2]] == [["orders", "failed"]]
    assert "[Kafka] is away." in said.stdout
    for other in ("exits", "fraud", "iot"):
        assert other not in said.stdout
    broken = sluice("status", "iot")
    assert broken.exit_code == 1
    assert "iot.py:2 cannot be imported" in broken.stdout
    assert "orders" not in broken.stdout


@pytest.mark.usefixtures("others")
def test_status_of_an_unknown_pipeline_names_the_known_ones() -> None:
    said = sluice("status", "order")
    assert said.exit_code == 1
    text = " ".join(said.stderr.split())
    assert "nor the ledger have a pipeline 'order'" in text
    assert "Known pipelines: exits, fraud, iot, orders." in text


def test_status_names_the_worst_first_and_a_common_cause_once() -> None:
    full = DiskNearlyFull("h has 0.9 GiB of 20.0 GiB left for /data, and needs 1.0 GiB.")
    with Ledger.open(settings().ledger) as ledger:
        for name in ("words", "orders"):
            ledger.failures.keep(Failure.of(full, name, kind="disk", host="h"))
        ledger.failures.keep(Failure.of(EngineError("No."), "words", run="words/manual__1/main"))
    lines = sluice("status").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [
        ["words", "failed"],
        ["orders", "degraded"],
    ]
    problems = [line for line in lines if line.startswith("✗")]
    assert [line.partition(", since")[0] for line in problems] == [
        "✗ words",
        "✗ 2 pipelines (orders, words)",
    ]
    assert problems[1].endswith(f": A disk is nearly full. {full.detail} {full.next_step}")


def test_status_names_the_ledger_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}/sluice"
        monkeypatch.setenv(
            "SLUICE_LEDGER", f"postgresql://ada:secret@{place}?connect_timeout=2&sslpassword=xi"
        )
        settings.cache_clear()
        said = sluice("status")
    assert said.exit_code == 1
    assert (
        f"The ledger is at postgresql://ada:***@{place}?connect_timeout=2&sslpassword=***."
        in said.stderr
    )


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[int, int]]:
    """The topics' end offsets, in place of a broker's."""
    ends: dict[str, dict[int, int]] = {"orders": {0: 10, 1: 5}, "stores": {0: 1}}
    monkeypatch.setattr("sluice.kafka.brokers.require_brokers", lambda *_: None)
    monkeypatch.setattr("sluice.kafka.unread_records.read_lag", lambda *_: Lag(ends, {}, {}))
    return ends


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the pipeline `orders`."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    orders = Path(__file__).parents[3] / "spark_jobs" / "orders.py"
    (folder / "orders.py").write_text(orders.read_text())
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    settings.cache_clear()
    return folder


def status_lines() -> tuple[int, list[str]]:
    """The exit code of `sluice status`, and its lines below the table's header."""
    said = sluice("status")
    assert said.stderr == ""
    lines = said.stdout.splitlines()[1:]
    return said.exit_code, [" ".join(line.split()) for line in lines if line.strip()]


@pytest.mark.usefixtures("jobs", "topics")
def test_status_of_a_healthy_pipeline(tmp_path: Path) -> None:
    published = States(f"sqlite:///{tmp_path}").publish({"a": "[1,2]"})
    assert status_lines() == (0, [f"orders ok 1.0, {published.published_at:%Y-%m-%d %H:%M:%S} UTC"])


@pytest.mark.usefixtures("jobs", "topics")
def test_a_pipeline_that_never_ran_is_not_started() -> None:
    assert status_lines() == (0, ["orders not started none"])


@pytest.mark.usefixtures("jobs")
def test_status_names_the_topics_that_a_pipeline_needs(topics: dict[str, dict[int, int]]) -> None:
    del topics["stores"]
    lines = ["orders not started none", "· orders: not started. Topic stores does not exist yet."]
    assert status_lines() == (0, lines)
    del topics["orders"]
    said = "· orders: not started. The topics orders, stores do not exist yet."
    assert status_lines()[1][1] == said


@pytest.mark.usefixtures("jobs")
def test_status_says_that_a_pipeline_needs_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_KAFKA", '{"bootstrap.servers": "127.0.0.1:1"}')
    monkeypatch.setattr("sluice.commands.status_command._KAFKA_SECONDS", 0.1)
    settings.cache_clear()
    code, lines = status_lines()
    assert (code, lines[0]) == (0, "orders not started none")
    assert lines[1].startswith("· orders: not started. Kafka at 127.0.0.1:1 does not answer")


@pytest.mark.usefixtures("topics")
def test_status_says_that_a_file_is_gone_until_its_pipeline_is_retired(
    jobs: Path,
    tmp_path: Path,
) -> None:
    states = States(f"sqlite:///{tmp_path}")
    states.publish({"a": "[1,2]"})
    states.ledger.generations.register(states.info(file=str(jobs / "orders.py")))
    assert status_lines()[0] == 0
    (jobs / "orders.py").unlink()
    code, lines = status_lines()
    assert (code, lines[0].split()[:2]) == (1, ["orders", "broken"])
    assert f"Its file is gone: {jobs}/orders.py." in lines[1]
    retired = sluice("retire", "orders")
    assert retired.stdout == "orders is retired. Its state can still be queried.\n"
    code, lines = status_lines()
    assert (code, len(lines), lines[0].split()[:2]) == (0, 1, ["orders", "retired"])
    assert sluice("retire", "words").exit_code == 1


@pytest.mark.usefixtures("topics")
def test_status_says_that_no_file_here_defines_a_pipeline(jobs: Path, tmp_path: Path) -> None:
    """The file's folder may be on another host, so nothing counts as wrong."""
    states = States(f"sqlite:///{tmp_path}")
    states.publish({"a": "[1,2]"})
    states.ledger.generations.register(states.info(file="/of/another/host/orders.py"))
    assert len(status_lines()[1]) == 1
    (jobs / "orders.py").unlink()
    code, lines = status_lines()
    assert (code, lines[0].split()[:2]) == (0, ["orders", "ok"])
    assert lines[1].startswith(f"· orders: no file in {jobs} defines it. Its newest run read /of/")
    sluice("retire", "orders")
    assert len(status_lines()[1]) == 1


@pytest.mark.parametrize(("end_later", "is_named"), [(10, True), (12, False)])
def test_status_names_a_transaction_that_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_later: int, is_named: bool
) -> None:
    States(f"sqlite:///{tmp_path}").publish({"a": "[1,2]"})
    lasts = {"orders": {0: 17, 1: 5}}
    lags = [Lag({"orders": {0: end, 1: 5}}, {}, {}, lasts, "b:9092") for end in (10, end_later)]
    oldest = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    monkeypatch.setattr("sluice.kafka.brokers.require_brokers", lambda *_: None)
    monkeypatch.setattr(
        "sluice.kafka.unread_records.read_lag", lambda _admin, _topics, _read: lags.pop(0)
    )
    monkeypatch.setattr(
        "sluice.kafka.open_transactions.oldest_held",
        lambda _kafka, lag: oldest if lag.held_ends else None,
    )
    monkeypatch.setattr("sluice.commands.status_command._WATCH_SECONDS", 0.01)
    said = sluice("status")
    assert said.exit_code == int(is_named)
    assert bool(re.search("orders +held +1.0", said.stdout)) == is_named
    told = (
        "orders, since 2026-01-02 03:04:05 UTC: A transaction holds back records. "
        "The transaction holds back 7 records of orders/0."
    )
    assert (told in said.stdout) == is_named
    command = "`kafka-transactions.sh --bootstrap-server b:9092 abort --topic orders --partition 0 --start-offset 10`"
    assert (command in said.stdout) == is_named


def test_status_without_a_broker_says_what_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_KAFKA", '{"bootstrap.servers": "127.0.0.1:1"}')
    monkeypatch.setattr("sluice.commands.status_command._KAFKA_SECONDS", 0.1)
    settings.cache_clear()
    States(f"sqlite:///{tmp_path}").publish({"a": "[1,2]"})
    said = sluice("status")
    assert said.exit_code == 1
    assert "UTC: The input is away. Kafka at 127.0.0.1:1 does not answer" in " ".join(
        said.stdout.split()
    )


@pytest.mark.usefixtures("others")
def test_a_broken_file_does_not_affect_others(tmp_path: Path) -> None:
    for command in ("describe", "explain"):
        assert sluice(command, "orders").exit_code == 0
        assert "fraud.py:2 cannot be imported: SyntaxError" in sluice(command, "fraud").stderr
        assert "iot.py:2 cannot be imported: ModuleNotFoundError" in sluice(command, "iot").stderr
    (tmp_path / "orders.py").unlink()
    checked = sluice("check")
    assert checked.exit_code == 1
    assert [line for line in checked.stderr.splitlines() if "cannot be imported" in line] == [
        "Invalid topology: exits.py:1 cannot be imported: SystemExit: not here.",
        "Invalid topology: fraud.py:2 cannot be imported: SyntaxError: '(' was never closed.",
        "Invalid topology: iot.py:2 cannot be imported: ModuleNotFoundError: No module named 'nothing_like_this'.",
    ]


def test_check_reports_settings_that_the_client_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    monkeypatch.setenv(
        "SLUICE_KAFKA", '{"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}'
    )
    settings.cache_clear()
    checked = sluice("check")
    assert checked.exit_code == 1
    assert "Kafka's settings are invalid" in checked.stderr
    assert "No provider for SASL mechanism GSSAPI" in checked.stderr


def test_check_warns_if_there_are_no_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    with TokenServer() as tokens:
        monkeypatch.setenv("SLUICE_KAFKA", json.dumps(tokens.client_settings(1)))
        settings.cache_clear()
        assert "no token" not in sluice("check").stdout
    token_endpoint._trouble.cache_clear()
    checked = sluice("check")
    assert "warning: There is no token for Kafka at 127.0.0.1:1" in checked.stdout
    assert CLIENT_SECRET not in checked.stdout + checked.stderr


def test_init_makes_a_project_in_a_new_folder(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    done = sluice("init", str(project))
    assert done.exit_code == 0
    assert (project / "README.md").read_text().startswith("# shop\n")
    assert f"~={__version__}" in (project / "requirements.txt").read_text()
    assert (project / ".gitignore").exists()
    (pipeline,) = load_pipelines(project / "spark_jobs").pipelines
    assert plan(pipeline).job.outputs == ("checkouts",)
    for file in ("dags/pipelines.py", "dags/maintenance.py", "plugins/state_plugin.py"):
        assert (project / file).read_text() == (ROOT / file).read_text(), "as in the repository"

    (broker,) = yaml.safe_load((project / "compose.yaml").read_text())["services"].values()
    shared = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]["kafka"]
    assert broker["image"] == shared["image"]
    named = {name for name in shared["environment"] if "LISTENER" not in name}
    assert named == {name for name in broker["environment"] if "LISTENER" not in name}

    again = sluice("init", str(project))
    assert again.exit_code == 1
    assert "not empty" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (("query", "stores"), "httpx", "client"),
        (("check", "orders"), "pyspark", "spark"),
        (("run", "orders"), "confluent_kafka", "spark"),
        (("topics", "read", "orders"), "confluent_kafka", "spark"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(
    arguments: tuple[str, ...], package: str, extra: str
) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from sluice.commands.cli import app; app({list(arguments)})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 1
    assert process.stderr.splitlines() == [
        f"This machine is not ready: This command needs the package {package}, which is not installed.",
        f"Run: pip install 'sluice-streams[{extra}]'",
    ]


def test_tables_are_not_cut_in_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a_pipeline_with_quite_a_long_name_that_alone_would_fill_more_than_eighty_columns"
    (tmp_path / f"{name}.py").write_text(
        f"from sluice import Pipeline\npipeline = Pipeline({name!r})\npipeline.stream('t', value=str)"
    )
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    settings.cache_clear()
    assert f"{name}  not started  none" in sluice("status").stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (
            ("check", "orders"),
            {"JAVA_HOME": "/nope"},
            "JAVA_HOME is /nope, but /nope/bin/java does not exist.",
        ),
        (
            ("query", "stores"),
            {"SLUICE_URL": "http://user@[::1"},
            "Write for example http://127.0.0.1:8080.",
        ),
        (
            ("query", "stores"),
            {"SLUICE_URL": "127.0.0.1:8080"},
            "not a URL with http:// or https:// and a host",
        ),
        (("init", "/proc/project"), {}, "Cannot create /proc/project/"),
        (
            ("kafka", "start", "--folder", "/proc/kafka"),
            {},
            "Cannot create the broker's folder /proc/kafka",
        ),
        (
            ("run", "orders", "--linger", "abc"),
            {},
            "--linger 'abc' is not a duration. Write for example",
        ),
        (
            ("generations", "list", "orders"),
            {"SLUICE_LEDGER": "foo"},
            "SLUICE_LEDGER sets the ledger's address",
        ),
        (
            ("topics", "create", "orders"),
            {"SLUICE_KAFKA": '{"bootstrap.server": "a"}'},
            '"bootstrap.server"',
        ),
        (
            ("topics", "read", "orders"),
            {"SLUICE_KAFKA": '{"security.protocol": "foo"}'},
            '"security.protocol"',
        ),
        (
            ("topics", "write", "orders"),
            {"SLUICE_KAFKA": '{"security.protocol": "foo"}'},
            "in SLUICE_KAFKA",
        ),
        (
            ("dead-letters", "list", "orders"),
            {"SLUICE_KAFKA": '{"security.protocol": "foo"}'},
            "settings are invalid",
        ),
    ],
)
def test_wrong_settings_are_named(
    arguments: tuple[str, ...],
    variables: dict[str, str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "pyspark.SparkContext._gateway", None
    )  # another test of this process may have started Java
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    result = sluice(*arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert expected in result.stderr.replace("\n", " ")


def test_a_missing_name_matches_no_broken_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    settings.cache_clear()
    assert "There is no pipeline ''" in sluice("describe", "").stderr


def test_standard_input_that_is_no_text_is_refused() -> None:
    result = CliRunner().invoke(app, ["topics", "write", "notes"], input=b"fine\n\xff\n")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        1,
        "Invalid setting: Standard input is not UTF-8 text: byte 5 cannot be decoded.",
    )


def test_libraries_of_an_unknown_pipeline_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orders.py").write_text('pipeline = Pipeline("orders")\n')
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    settings.cache_clear()
    result = sluice("libraries", "build", "ordres")
    assert result.exit_code == 1
    assert "There is no pipeline 'ordres'" in result.output
    assert "Known pipelines: orders." in result.output
    assert (
        "No requirements in sluice.toml for orders."
        in sluice("libraries", "build", "orders").output
    )
