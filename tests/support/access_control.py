"""A broker with access control, and the user `sluice`, who logs in at a port of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from sluice.local.broker import EmbeddedKafka
from tests.support.ports import free_port

USER = "User:sluice"


@contextmanager
def broker_with_access_control(folder: Path, **config: str) -> Iterator[tuple[EmbeddedKafka, int]]:
    """A broker, and the port at which the user logs in. Its other listener allows everything."""
    port = free_port()
    listener = f"SASL_PLAINTEXT://127.0.0.1:{port}"
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_sluice="secret";'
    settings = {
        "listeners": listener,
        "advertised.listeners": listener,
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": login,
        **config,
    }
    with EmbeddedKafka(folder, config=settings) as broker:
        yield broker, port


def settings_of_user(port: int) -> dict[str, str]:
    """The settings of Kafka with which the user logs in."""
    return {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "sluice",
        "sasl.password": "secret",
        "log_level": "0",
    }


def forget_rules(admin: AdminClient) -> None:
    anything: Any = None
    rules = AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        anything,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    for future in admin.delete_acls([rules]).values():
        future.result(20)
