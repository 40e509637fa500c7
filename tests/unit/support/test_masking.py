"""One rule says what is secret in settings and URLs, and how they are shown without it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sluice.state.database import database_url, open_engine
from sluice.support.masking import (
    is_secret,
    masked,
    secrets_of_settings,
    secrets_of_url,
    shown_url,
    without_log_in,
)

SECRET = "S3cr3t/Pw+1"
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:xi@db:5432/state", "postgresql://ada:***@db:5432/state"),
        ("postgresql://ada@db/state", "postgresql://ada@db/state"),
        ("postgresql://ada:x@i@db/state", "postgresql://ada:***@db/state"),
        ("postgresql://ada:x/i@db/state", "postgresql://ada:***@db/state"),
        (
            "postgresql://ada:x?i@db/state?sslmode=require",
            "postgresql://ada:***@db/state?sslmode=require",
        ),
        ("postgresql://ada:@db/state", "postgresql://ada:***@db/state"),
        (
            "postgresql://db/state?user=ada@home&password=xi",
            "postgresql://db/state?user=ada@home&password=***",
        ),
        (
            "postgresql://db/state?p%61ssword=xi&PASSWORD=xi",
            "postgresql://db/state?p%61ssword=***&PASSWORD=***",
        ),
        (
            "postgresql://db/state?sslpassword=xi&sslkey=/k",
            "postgresql://db/state?sslpassword=***&sslkey=***",
        ),
        (
            "postgresql://db/state?passfile=/p&schema=s",
            "postgresql://db/state?passfile=***&schema=s",
        ),
        ("postgresql://db/state?options=-c%20my.secret%3Dxi", "postgresql://db/state?options=***"),
        ("mssql+pyodbc://?odbc_connect=SERVER%3Ddb%3BPWD%3Dxi", "mssql+pyodbc://?odbc_connect=***"),
        (
            "snowflake://ada@db/?private_key_passphrase=xi",
            "snowflake://ada@db/?private_key_passphrase=***",
        ),
        ("host=db password='x i' user=ada", "host=db password=*** user=ada"),
        (
            "sqlite:////data/a:b@c/ledger.sqlite?synchronous=off",
            "sqlite:////data/a:b@c/ledger.sqlite?synchronous=off",
        ),
        ("http://[::1]:8080/local", "http://[::1]:8080/local"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:S3cr3t%2FPw%2B1@db/state",
        f"postgresql://ada:{SECRET}@db/state",
        "postgresql://db/state?password=S3cr3t%2FPw%2B1",
        "postgresql://db/state?sslpassword=S3cr3t/Pw%2b1",
        "postgresql://db/state?p%61ssword=S3cr3t%2FPw%2B1&schema=s",
        "mssql+pyodbc://?odbc_connect=SERVER%3Ddb%3BPWD%3D%7BS3cr3t%2FPw%2B1%7D%3B",
        f"host=db password='{SECRET}' user=ada",
    ],
)
def test_the_secrets_of_a_url_are_known_as_they_are_meant(url: str) -> None:
    assert SECRET in {*secrets_of_url(url)}


def test_host_and_path_remain_of_a_url_without_its_log_in() -> None:
    assert without_log_in("postgresql://ada:x/i@db:5432/state?sslpassword=xi") == "db:5432/state"
    assert without_log_in("sqlite:////data/ledger.sqlite") == "//data/ledger.sqlite"


def test_libpq_has_no_secret_parameter_that_is_shown() -> None:
    options = psycopg.pq.Conninfo.get_defaults()
    secret = [option.keyword.decode() for option in options if option.dispchar == b"*"]
    assert {"password", "sslpassword"} <= {*secret}
    assert [name for name in secret if not is_secret(name)] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.password", SECRET),
        ("ssl.key.password", SECRET),
        ("ssl.keystore.password", SECRET),
        ("ssl.key.pem", f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----"),
        ("sasl.oauthbearer.client.secret", SECRET),
        ("sasl.oauthbearer.assertion.private.key.passphrase", SECRET),
        ("sasl.oauthbearer.config", f"principal=ada secret={SECRET}"),
        (
            "sasl.jaas.config",
            f'org.apache.ScramLoginModule required username="ada" password="{SECRET}";',
        ),
        ("sasl.oauthbearer.token.endpoint.url", f"https://ada:{SECRET}@idp/token"),
        ("spark.hadoop.fs.s3a.secret.key", SECRET),
        ("fs.azure.account.key.lake.dfs.core.windows.net", SECRET),
        ("spark.driver.extraJavaOptions", f"-Djavax.net.ssl.trustStorePassword={SECRET} -Xmx1g"),
    ],
)
def test_settings_with_secrets(name: str, value: str) -> None:
    assert SECRET in {*secrets_of_settings({name: value})}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bootstrap.servers", "SASL_SSL://broker.example:9093"),
        ("ssl.key.location", "/etc/kafka/client.key"),
        ("sasl.oauthbearer.token.endpoint.url", "https://idp.example/token"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "org.apache.hadoop.Provider"),
        ("client.id", "the-client-of-ada"),
    ],
)
def test_settings_without_secrets(name: str, value: str) -> None:
    assert {*secrets_of_settings({name: value})} <= {""}


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        "S3cr3t%2FPw%2B1",
        "S3cr3t/Pw%2B1",
        json.dumps(SECRET),
        f"postgresql://ada:{SECRET}@db",
        f"postgresql%3A%2F%2Fada%3A{SECRET}%40db",
    ],
)
def test_a_text_contains_no_secret_in_any_encoding(text: str) -> None:
    assert "S3cr3t" not in masked(f"connecting to {text}, failed", [SECRET])
    assert masked(f"connecting to {text}, failed", [SECRET]).startswith("connecting to ")


def test_secrets_with_quotes_and_backslashes_are_masked_in_json() -> None:
    secret = 'quo"te\\slash'
    assert masked(json.dumps({"why": secret}), [secret]) == '{"why": "***"}'


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('database "state" does not exist', "xi"),
        ('relation "postgres" does not exist', "post"),
        ("the passwords differ", "password"),
        ("postgresql refused", "postgres"),
    ],
)
def test_ordinary_words_stay_as_they_are(text: str, secret: str) -> None:
    assert masked(text, [secret]) == text


def test_a_text_shows_no_short_secret_of_a_url() -> None:
    assert masked("cannot open 'postgresql://ada:xi@db/s?sslpassword=xi'.", ["xi"]) == (
        "cannot open 'postgresql://ada:***@db/s?sslpassword=***'."
    )


def test_no_engine_shows_a_secret() -> None:
    engine = open_engine(database_url("postgresql://ada:xi@db/state?sslpassword=xi&schema=s"))
    assert repr(engine) == "Engine(postgresql+psycopg://ada:***@db/state?schema=s)"


def test_no_dataclass_shows_a_secret() -> None:
    shown: list[str] = []
    for file in (ROOT / "sluice").rglob("*.py"):
        shown += _confidential_fields(file)
    assert shown == []


def _confidential_fields(file: Path) -> Iterator[str]:
    """Yield the fields of dataclasses that may hold a secret, and that `repr` shows."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef) and "@dataclass" in _decorators(node):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and ast.unparse(field.annotation) in _SETTINGS:
                    name = ast.unparse(field.target)
                    is_confidential = name in _CONFIDENTIAL or (is_secret(name) and name != "key")
                    if is_confidential and "repr=False" not in ast.unparse(field):
                        yield f"{file.name}: {node.name}.{name}"


_SETTINGS = {"str", "dict[str, str]", "Mapping[str, str]"}
_CONFIDENTIAL = {"kafka", "ledger", "shards", "connections", "spark_conf"}


def _decorators(node: ast.ClassDef) -> str:
    return " ".join(f"@{ast.unparse(decorator)}" for decorator in node.decorator_list)
