"""Clients that log in with OAuth tokens: an error says why they get none, and shows no secret."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import structlog
from confluent_kafka import KafkaError, KafkaException

from sluice.engine.batch.job_topics import kafka_errors
from sluice.errors import BrokersUnreachable, SettingsError
from sluice.kafka import range_reader, token_endpoint
from sluice.kafka.brokers import (
    configuration_errors,
    quiet,
    require_brokers,
    silent_admin,
    unreachable,
    with_certificates,
)
from sluice.kafka.range_reader import RangeReader
from sluice.kafka.token_endpoint import argument_of, shared_token
from sluice.kafka.token_functions import MSK_IAM, TokenFunction, token_settings
from sluice.values.record_places import Range
from tests.faults.world import wait_until
from tests.support import token_functions
from tests.support.certificates import make_certificate
from tests.support.token_server import CLIENT_SECRET, TokenServer

FUNCTIONS = "tests.support.token_functions"


@pytest.fixture(autouse=True)
def forget() -> None:
    token_endpoint._trouble.cache_clear()


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server


def error_of(call: Callable[[], object]) -> BrokersUnreachable:
    with pytest.raises(BrokersUnreachable) as raised:
        call()
    assert CLIENT_SECRET not in str(raised.value)
    return raised.value


def refused(tokens: TokenServer) -> str:
    tokens.stop()
    return r"cannot be reached: .*refused"


def revoked(tokens: TokenServer) -> str:
    tokens.is_revoked = True
    return r'answers 401 Unauthorized: {"error": "invalid_client"}'


def slow(tokens: TokenServer) -> str:
    tokens.delay_s = 2.0
    return "does not answer within 0 s"


def expired(tokens: TokenServer) -> str:
    tokens.lifetime_s = -90
    return "issues tokens that expired 9. s ago by the clock of this host"


@pytest.mark.parametrize("trouble", [refused, revoked, slow, expired])
def test_trouble_of_the_endpoint_is_named(
    tokens: TokenServer, trouble: Callable[[TokenServer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_endpoint, "_ANSWER_S", 0.4)
    kafka = tokens.client_settings(1)
    reason = trouble(tokens)
    error = error_of(lambda: require_brokers(kafka, 0.5))
    assert error.detail.startswith("There is no token for Kafka at 127.0.0.1:1: the token endpoint")
    assert f"{tokens.token_url} " in error.detail
    with pytest.raises(BrokersUnreachable, match=reason):
        raise error
    assert "sasl.oauthbearer.client.secret" in error.next_step


def test_other_errors_keep_their_reason_while_tokens_are_issued(tokens: TokenServer) -> None:
    kafka = tokens.client_settings(1)
    error = unreachable(kafka, "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed")
    assert (
        error.detail == "Kafka at 127.0.0.1:1 does not answer: Connect to ipv4#127.0.0.1:1 failed."
    )


def test_a_refused_token_says_what_to_check(tokens: TokenServer) -> None:
    why = 'SASL authentication error: {"status":"invalid_token"} (after 3ms in state AUTH_REQ)'
    error = unreachable(tokens.client_settings(1), f"127.0.0.1:1/bootstrap: {why}")
    assert '{"status":"invalid_token"}' in error.detail
    assert "whether the brokers accept the audience, the issuer and the scope" in error.next_step


def test_a_reader_says_soon_why_it_waits(
    tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_QUESTION_S", 1.5)
    tokens.stop()
    with (
        structlog.testing.capture_logs() as logs,
        RangeReader(tokens.client_settings(1), longest_silence_s=3.0) as reader,
    ):
        error = error_of(lambda: list(reader.read([Range("sales", 0, 0, 1)])))
    (warning,) = logs
    assert warning["event"] == "waiting for the broker"
    for text in (warning["why"], error.detail):
        assert f"the token endpoint {tokens.token_url} cannot be reached" in text


def test_an_endpoint_is_asked_once_in_ten_seconds(tokens: TokenServer) -> None:
    kafka = tokens.client_settings(1)
    for _ in range(5):
        unreachable(kafka, "timed out")
    assert tokens.requests <= 2


def test_a_request_without_an_answer_names_the_endpoint(tokens: TokenServer) -> None:
    tokens.stop()
    kafka = tokens.client_settings(1)

    def time_out() -> None:
        with kafka_errors("Writing the output", kafka):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    assert tokens.token_url in error_of(time_out).detail


def test_an_endpoint_with_tls_must_have_a_certificate_of_a_known_authority(tmp_path: Path) -> None:
    for name in ("endpoint", "stranger"):
        make_certificate(tmp_path, name)
    with TokenServer(tmp_path / "endpoint.pem") as tokens:
        right = tokens.client_settings(1) | {"https.ca.location": str(tmp_path / "endpoint.crt")}
        wrong = right | {"https.ca.location": str(tmp_path / "stranger.crt")}
        for kafka in (right, with_certificates(right)):
            assert "token" not in unreachable(kafka, "timed out").detail
        for kafka in (wrong, with_certificates(wrong), tokens.client_settings(1)):
            assert "certificate verify failed" in unreachable(kafka, "timed out").detail


def test_a_client_on_another_host_gets_tokens_over_tls(tmp_path: Path) -> None:
    """The text of the authority's certificate takes the place of its file."""
    make_certificate(tmp_path, "endpoint")
    with TokenServer(tmp_path / "endpoint.pem") as tokens:
        kafka = tokens.client_settings(1) | {"https.ca.location": str(tmp_path / "endpoint.crt")}
        sent = with_certificates(kafka)
        assert "https.ca.location" not in sent
        admin = silent_admin(sent)
        assert wait_until(lambda: tokens.requests == 1, 20)
        del admin


def test_the_secret_is_not_sent_to_another_address(tokens: TokenServer) -> None:
    with TokenServer() as other:
        tokens.moved_to = other.token_url
        error = unreachable(tokens.client_settings(1), "timed out")
        assert "answers 302 Found" in error.detail
        assert (other.requests, other.gets) == (0, 0)


@pytest.mark.parametrize(
    "answer",
    [b"", b"[]", b'"text"', b'{"token": "x"}', b'{"access_token": "opaque"}',
     b'{"access_token": "a.e30.b"}', b'{"access_token": null}', b"\xff"],
)  # fmt: skip
def test_an_answer_without_a_valid_token_is_named(
    tokens: TokenServer, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "body", answer)
    error = unreachable(tokens.client_settings(1), "timed out")
    assert "without an access_token" in error.detail or "not JSON Web Tokens" in error.detail


@pytest.mark.parametrize(
    ("name", "value"),
    [("method", "default"), ("client.secret", ""), ("token.endpoint.url", "file:///etc/passwd")],
)
def test_nothing_is_asked_without_an_endpoint(tokens: TokenServer, name: str, value: str) -> None:
    tokens.stop()
    kafka = tokens.client_settings(1) | {f"sasl.oauthbearer.{name}": value}
    assert "token" not in unreachable(kafka, "timed out").detail


def shared(tokens: TokenServer) -> dict[str, str]:
    return tokens.client_settings(1) | {"sluice.oauthbearer.shared": "true"}


def test_all_clients_of_a_process_may_share_the_token_of_an_endpoint(tokens: TokenServer) -> None:
    for _ in range(5):
        silent_admin(shared(tokens))
    assert tokens.requests == 1


def test_a_shared_token_has_the_extensions_of_the_settings(tokens: TokenServer) -> None:
    extensions = {"sasl.oauthbearer.extensions": "logicalCluster=lkc-1, identityPoolId=pool-1"}
    silent_admin(shared(tokens) | extensions)
    token = shared_token(argument_of(shared(tokens) | extensions))
    assert token[2:] == ("", {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"})


def test_trouble_of_an_endpoint_with_shared_tokens_is_named(tokens: TokenServer) -> None:
    tokens.is_revoked = True
    error = error_of(lambda: require_brokers(shared(tokens)))
    assert f"the token endpoint {tokens.token_url} answers 401 Unauthorized" in error.detail
    assert "sasl.oauthbearer.client.secret" in error.next_step


def by_function(name: str, argument: str = "") -> dict[str, str]:
    return {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.config": argument,
        "oauth_cb": f"{FUNCTIONS}.{name}",
    }


def test_all_clients_of_a_process_share_the_token_of_a_function() -> None:
    token_functions.calls.clear()
    argument = f"region=test-{time.time()}"
    for _ in range(3):
        silent_admin(by_function("unsigned", argument))
    assert token_functions.calls == [argument]


def test_a_token_is_made_again_in_the_second_half_of_its_lifetime() -> None:
    made: list[float] = []

    def make(argument: str) -> tuple[str, float]:
        made.append(time.time())
        return argument, time.time() + 0.4

    function = TokenFunction("made", make)
    assert function("a") == function("a")
    time.sleep(0.25)
    function("a")
    function("b")
    assert len(made) == 3


def test_a_function_that_fails_is_named_with_its_reason() -> None:
    begun = time.monotonic()
    error = error_of(lambda: require_brokers(by_function("failing", "region=x")))
    assert time.monotonic() - begun < 15
    assert "There is no token for Kafka at 127.0.0.1:1" in error.detail
    # The function's argument may contain a secret.
    reason = f"{FUNCTIONS}.failing has failed: RuntimeError: no credentials for ***."
    assert error.detail.endswith(reason)
    assert "oauth_cb" in error.next_step


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("secret", "it must return a token"),
        (("secret",), "it must return a token"),
        (("", time.time() + 3_600), "it must return a token"),
        (None, "it must return a token"),
        (("secret", 1_000.0), "its token has expired already"),
        (("secret", (time.time() + 3_600) * 1_000), "is in milliseconds, not in seconds"),
    ],
)
def test_a_function_that_returns_no_valid_token_is_told(returned: Any, reason: str) -> None:
    function = TokenFunction("tokens.made", lambda _: returned)
    with pytest.raises(token_endpoint.TokenError, match=reason):
        function("")
    assert reason in function.trouble
    assert "secret" not in function.trouble


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tests.nowhere.token", "cannot be imported: No module named 'tests.nowhere'"),
        (f"{FUNCTIONS}.missing", "cannot be imported: .*no attribute 'missing'"),
        ("token", "cannot be imported: its module is missing"),
        (f"{FUNCTIONS}.not_a_function", "is not a function"),
    ],
)
def test_a_function_that_does_not_exist_is_a_wrong_setting(name: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        require_brokers(by_function("unsigned") | {"oauth_cb": name})


class Signer:
    """Stands in for AWS's library."""

    calls: ClassVar[list[tuple[str, ...]]] = []

    @classmethod
    def generate_auth_token(cls, region: str) -> tuple[str, int]:
        cls.calls.append((region,))
        return "signed", 1_000_000

    @classmethod
    def generate_auth_token_from_role_arn(cls, region: str, role: str) -> tuple[str, int]:
        cls.calls.append((region, "role", role))
        return "signed", 1_000_000

    @classmethod
    def generate_auth_token_from_profile(cls, region: str, profile: str) -> tuple[str, int]:
        cls.calls.append((region, "profile", profile))
        return "signed", 1_000_000


@pytest.fixture
def signer(monkeypatch: pytest.MonkeyPatch) -> type[Signer]:
    module: Any = ModuleType("aws_msk_iam_sasl_signer")
    module.MSKAuthTokenProvider = Signer
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", module)
    monkeypatch.delenv("AWS_REGION", raising=False)
    Signer.calls.clear()
    return Signer


def msk(host: str, **more: str) -> dict[str, str]:
    return {"bootstrap.servers": f"{host}:9098", "sasl.mechanism": "OAUTHBEARER", **more}


@pytest.mark.parametrize(
    ("host", "config", "called"),
    [
        ("b-1.a.b.c2.kafka.eu-central-1.amazonaws.com", "", ("eu-central-1",)),
        ("boot-a.c1.kafka-serverless.us-east-1.amazonaws.com", "", ("us-east-1",)),
        ("b-1.a.b.c2.kafka.cn-north-1.amazonaws.com.cn", "", ("cn-north-1",)),
        ("b-1.a.c2.kafka.us-east-1.amazonaws.com", "region=eu-west-1", ("eu-west-1",)),
        ("b-1.a.c2.kafka.us-east-1.amazonaws.com", "region=r role=arn", ("r", "role", "arn")),
        ("b-1.a.c2.kafka.us-east-1.amazonaws.com", "region=r,profile=p", ("r", "profile", "p")),
    ],
)
def test_the_brokers_of_msk_get_tokens_of_aws(
    signer: type[Signer], host: str, config: str, called: tuple[str, ...]
) -> None:
    more = {"sasl.oauthbearer.config": config} if config else {}
    settings = token_settings(msk(host, **more))
    function = settings["oauth_cb"]
    assert isinstance(function, TokenFunction)
    argument = settings["sasl.oauthbearer.config"]
    assert isinstance(argument, str)
    assert (function.name, function.make(argument)) == (MSK_IAM, ("signed", 1_000.0))
    assert signer.calls == [called]


@pytest.mark.parametrize(
    "kafka",
    [
        msk("kafka.example.com"),
        msk("b-1.a.c2.kafka.us-east-1.amazonaws.com") | {"sasl.mechanism": "SCRAM-SHA-512"},
        msk("b-1.a.kafka.us-east-1.amazonaws.com") | {"sasl.oauthbearer.method": "oidc"},
    ],
)
def test_other_clients_get_no_tokens_of_aws(kafka: dict[str, str]) -> None:
    assert token_settings(kafka) == {}
    assert "oauth_cb" not in quiet(kafka)


@pytest.mark.parametrize(("config", "reason"), [("", "region"), ("zone=x", "'zone=x'")])
def test_wrong_options_of_msk_are_named(signer: type[Signer], config: str, reason: str) -> None:
    settings = token_settings(msk("private.example", oauth_cb=MSK_IAM))
    function = settings["oauth_cb"]
    assert isinstance(function, TokenFunction)
    with pytest.raises(SettingsError, match=reason):
        function(config)


def test_missing_credentials_of_aws_are_named(
    signer: type[Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_credentials(region: str) -> tuple[str, int]:
        credentials: Any = None
        return credentials.access_key, 0

    monkeypatch.setattr(signer, "generate_auth_token", without_credentials)
    function = token_settings(msk("private.example", oauth_cb=MSK_IAM))["oauth_cb"]
    assert isinstance(function, TokenFunction)
    with pytest.raises(SettingsError, match="no credentials"):
        function("region=eu-central-1")


def test_a_missing_library_of_aws_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    function = token_settings(msk("private.example", oauth_cb=MSK_IAM))["oauth_cb"]
    assert isinstance(function, TokenFunction)
    with pytest.raises(SettingsError, match="needs the package aws-msk-iam-sasl-signer-python"):
        function("region=eu-central-1")


def test_errors_of_clients_without_tokens_are_unchanged() -> None:
    with pytest.raises(SettingsError, match="No such configuration property"):
        require_brokers({"bootstrap.servers": "127.0.0.1:1", "no.such.setting": "1"})
    with pytest.raises(SystemError), configuration_errors({}):
        raise SystemError("another")


def test_settings_stay_json(tokens: TokenServer) -> None:
    """The settings are passed on to other processes as text; only a client has the function."""
    kafka = by_function("unsigned")
    quiet(kafka)
    assert json.loads(json.dumps(kafka)) == kafka
