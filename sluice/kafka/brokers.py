"""Settings of Kafka clients, and errors of brokers. Clients do not log every failed attempt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from sluice.errors import BrokersUnreachable, SettingsError, sentence
from sluice.kafka.denied_operations import denial
from sluice.kafka.token_endpoint import endpoint_of, endpoint_trouble
from sluice.kafka.token_functions import SHARED, function_trouble, token_settings
from sluice.support.masking import masked, secrets_of_settings, shown_url

ANSWER_SECONDS = 5.0
"""How long runs and the sample producer wait for a broker."""

CHOSEN_BY_CLIENT = frozenset({
    "acks", "allow.auto.create.topics", "auto.offset.reset", "enable.auto.commit",
    "enable.auto.offset.store", "enable.idempotence", "enable.partition.eof", "group.id",
    "group.instance.id", "group.protocol", "group.remote.assignor", "isolation.level",
    "partitioner", "request.required.acks", "transactional.id",
})  # fmt: skip
"""Settings that Sluice chooses for each client. Sluice ignores them in Airflow's connections, where
they may be meant for other programs."""

_NOT_FOR_CLIENTS = CHOSEN_BY_CLIENT | {SHARED}

ANY_SIZE = {"message.max.bytes": "1000000000"}
"""Settings for a producer of records of any size: only the topic limits the size."""

COMMITS_NOTHING: Mapping[str, str | bool] = {
    "group.id": "sluice-guard",
    "enable.auto.commit": False,
}
"""Settings of a run's consumers. The consumers choose their offsets themselves and commit none, but
the client requires the name of a group nevertheless."""

_SENT_TO_EXECUTORS = ("ssl.ca", "ssl.certificate", "ssl.key", "https.ca")
"""The settings of files that the driver sends to executors."""
_READ_BY_EXECUTORS = ("ssl.keystore.location", "ssl.crl.location")
"""The settings of files that executors read themselves, because the client does not accept a text
in place of such a file."""

_MECHANISM = ("sasl.mechanism", "sasl.mechanisms")
_CRITICAL = 2
_BROKER = re.compile(r"^(?:\w+://)?([^/\s]+)/(?:bootstrap|\d+): ")
"""Matches the connection's name at the beginning of an error of librdkafka. The group of this
regular expression matches the broker's host and port."""
_SURROUNDINGS = re.compile(r"^\S+/(bootstrap|\d+): | \(after .*\)$")
"""Matches the parts that librdkafka adds to the reason of an error: the connection's name before
it, and a duration after it."""


def quiet(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for a client.

    Leaves out the settings in `CHOSEN_BY_CLIENT`, because the caller adds its own. Clients log only
    critical messages. The caller gets other errors as exceptions.
    """
    return {
        "log_level": _CRITICAL,
        # librdkafka waits for this time (at most 50 ms) even before it first connects to a broker.
        "reconnect.backoff.ms": 20,
        **{name: value for name, value in kafka.items() if name not in _NOT_FOR_CLIENTS},
        **token_settings(kafka),
    }


def producer_of(kafka: Mapping[str, str], own: Mapping[str, Any]) -> Producer:
    """Return a producer with a connection's settings; those in `own` take precedence.

    The producer sends a key to the partition to which Kafka Streams and other Java programs send
    it. librdkafka's own partitioner would choose another partition.
    """
    with configuration_errors(kafka):
        return Producer({**quiet(kafka), "partitioner": "murmur2_random", **own})


def require_brokers(kafka: Mapping[str, str], seconds: float = ANSWER_SECONDS) -> None:
    """Raise BrokersUnreachable, with the address, unless a broker answers within `seconds`."""
    errors: list[str] = []

    def on_error(error: KafkaError) -> None:
        # librdkafka first reports why each broker cannot be reached, and then that all brokers are
        # down.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            errors.append(error.str())

    with configuration_errors(kafka):
        admin = AdminClient(quiet(kafka) | {"error_cb": on_error})
    try:
        admin.list_topics(timeout=seconds)
    except KafkaException as error:
        # While polling, the client reports the reason to `on_error`.
        admin.poll(0)
        raise unreachable(kafka, errors[-1] if errors else error.args[0].str()) from None


def with_certificates(kafka: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with the certificates' texts in place of their files.

    Executors then need no copies of the files. The name of a missing file is kept, so that the
    client's error names it. The names of the files in `_READ_BY_EXECUTORS` are kept, too.
    """
    settings = dict(kafka)
    for name in _SENT_TO_EXECUTORS:
        path = Path(settings.get(f"{name}.location", ""))
        if path.is_file():
            del settings[f"{name}.location"]
            settings[f"{name}.pem"] = path.read_text()
    return settings


def _missing_files(kafka: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the settings that name a file that does not exist, with its path."""
    for name, path in kafka.items():
        # `ssl.ca.location` may also be a folder, or `probe` for the system's certificates.
        if name.endswith(".location") and path != "probe" and not Path(path).exists():
            yield name, path


@contextmanager
def configuration_errors(kafka: Mapping[str, str]) -> Iterator[None]:
    """Raise SettingsError if a client cannot be made in the block, because of an invalid setting.

    Raises BrokersUnreachable if the client needs a token from a function, but gets none.
    """
    try:
        yield
    except (KafkaException, SystemError) as error:
        # If a client gets no token when it is made, a SystemError can hide the token's error.
        if (tokenless := without_token(kafka)) is not None:
            raise tokenless from None
        if isinstance(error, SystemError):
            raise
        reason = masked(error.args[0].str(), secrets_of_settings(kafka))
        for name, path in _missing_files(kafka):
            reason = f"{sentence(reason)} The file {path} in {name} does not exist"
        next_step = (
            "Correct the setting in SLUICE_KAFKA, or in the extra of Airflow's Kafka connection."
        )
        if any(name in reason for name in _READ_BY_EXECUTORS):
            next_step += (
                " Spark's executors read this file, too: copy it to the same path on each of their "
                "hosts. In place of a keystore, you can set ssl.certificate.location and "
                "ssl.key.location: the driver sends their files."
            )
        raise SettingsError(
            f"Kafka's settings are invalid: {sentence(reason)}", next_step=next_step
        ) from None


@contextmanager
def broker_errors(kafka: Mapping[str, str]) -> Iterator[None]:
    """Raise BrokersUnreachable, with the address, if a request fails or gets no answer in time.

    Raises AccessDenied, a kind of BrokersUnreachable, if the broker denies the request.
    """
    try:
        yield
    except KafkaException as error:
        if (denied := denial(kafka, error)) is not None:
            raise denied from None
        raise unreachable(kafka, error.args[0].str()) from None
    except TimeoutError:
        # The future of a request raises TimeoutError if the broker does not answer in time.
        raise unreachable(kafka, "timed out") from None


def silent_admin(kafka: Mapping[str, str]) -> AdminClient:
    """Return a client that does not log connection errors. Its caller reports failed requests."""
    with configuration_errors(kafka):
        return AdminClient(quiet(kafka) | {"error_cb": lambda _: None})


def without_token(kafka: Mapping[str, str]) -> BrokersUnreachable | None:
    """Return the error that explains why clients get no token to log in with.

    Returns None if they get tokens, or need none. May wait some seconds for an OAuth endpoint.
    """
    address = kafka.get("bootstrap.servers", "an unset address")
    names = "sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret and the endpoint's address"
    reason = endpoint_trouble(kafka)
    if reason:
        reason = f"the token endpoint {shown_url(endpoint_of(kafka))} {reason}"
    elif reason := function_trouble(kafka):
        names = "oauth_cb, sasl.oauthbearer.config and the credentials that the function uses"
    else:
        return None
    detail = f"There is no token for Kafka at {address}: {sentence(reason)}"
    detail = masked(detail, secrets_of_settings(kafka))
    return BrokersUnreachable(
        detail, next_step=f"Check {names}. Sluice goes on as soon as it gets a token."
    )


def require_token(kafka: Mapping[str, str]) -> None:
    """Raise BrokersUnreachable if clients get no token to log in with."""
    if (tokenless := without_token(kafka)) is not None:
        raise tokenless


def unreachable(kafka: Mapping[str, str], why: str) -> BrokersUnreachable:
    """Create a BrokersUnreachable error with the configured address and librdkafka's reason.

    If the client has no token, return the error that says why.
    """
    if (tokenless := without_token(kafka)) is not None:
        return tokenless
    address = kafka.get("bootstrap.servers", "an unset address")
    # The message from the broker or librdkafka may quote part of a setting, such as a secret.
    reason = masked(_SURROUNDINGS.sub("", why), secrets_of_settings(kafka))
    next_step = ""
    if "certificate verify failed" in why:
        # librdkafka gives the same reason for an unknown authority as for a name that does not
        # match.
        named = _BROKER.match(why)
        broker = address if named is None else named[1]
        reason = f"the certificate of {broker} cannot be verified"
        next_step = (
            "Check that the file in ssl.ca.location contains the authority that signed the "
            "certificate, and that the certificate contains the host in this address. "
            "ssl.endpoint.identification.algorithm=none turns the check of the host off."
        )
    elif "SASL authentication" in why:
        log_in = "sasl.username and sasl.password"
        if "OAUTHBEARER" in {kafka.get(name, "").upper() for name in _MECHANISM}:
            log_in = (
                "whether the brokers accept the audience, the issuer and the scope of the tokens"
            )
        next_step = f"Check sasl.mechanism, and {log_in}, in SLUICE_KAFKA or Airflow's connection."
    return BrokersUnreachable(
        f"Kafka at {address} does not answer: {sentence(reason)}", next_step=next_step
    )
