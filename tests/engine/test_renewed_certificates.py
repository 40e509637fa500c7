"""The certificate of a run's clients is replaced while the run goes on, at a real broker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from sluice.kafka.brokers import silent_admin
from sluice.kafka.replaced_files import LastingAdmin
from sluice.kafka.unread_records import read_lag
from sluice.local.broker import EmbeddedKafka
from sluice.settings import Settings
from tests.engine.conftest import Running
from tests.engine.shop import Names, copied
from tests.faults.world import wait_until
from tests.support.certificates import make_certificate
from tests.support.ports import free_port
from tests.support.spark_in_process import SparkInProcess


@dataclass(frozen=True)
class Secured:
    broker: EmbeddedKafka
    port: int
    """The port of the listener that asks for a certificate of `old` or `renewed`."""
    folder: Path

    @property
    def kafka(self) -> dict[str, str]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.folder / "broker.crt"),
            "ssl.certificate.location": str(self.folder / "client.crt"),
            "ssl.key.location": str(self.folder / "client.key"),
            "log_level": "0",
        }

    def use(self, name: str) -> None:
        """Replace the client's certificate and key."""
        for kind in ("crt", "key"):
            (self.folder / f"client.{kind}").write_bytes(
                (self.folder / f"{name}.{kind}").read_bytes()
            )

    def deny_old(self, topic: str) -> None:
        """Deny everything on a topic to clients with the old certificate."""
        bindings: list[AclBinding] = []
        for user, permission in (
            ("User:CN=old", AclPermissionType.DENY),
            ("User:*", AclPermissionType.ALLOW),
        ):
            literal = ResourcePatternType.LITERAL
            everything = AclOperation.ALL
            bindings.append(
                AclBinding(ResourceType.TOPIC, topic, literal, user, "*", everything, permission)
            )
        admin = silent_admin({"bootstrap.servers": self.broker.bootstrap})
        for future in admin.create_acls(bindings).values():
            future.result(20)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder, port = tmp_path_factory.mktemp("certificates"), free_port()
    for name in ("broker", "old", "renewed"):
        make_certificate(folder, name)
    authorities = folder / "authorities.crt"
    authorities.write_text((folder / "old.crt").read_text() + (folder / "renewed.crt").read_text())
    listener = f"SSL://127.0.0.1:{port}"
    config = {
        "listeners": listener,
        "advertised.listeners": listener,
        "listener.security.protocol.map": "SSL:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authorities),
        "listener.name.ssl.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedKafka(tmp_path_factory.mktemp("secured"), config=config) as broker:
        made = Secured(broker, port, folder)
        made.use("old")
        yield made


def test_a_lingering_run_goes_on_with_a_renewed_certificate(
    secured: Secured, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    secured.use("old")
    names = Names(fresh_name("renewed"))
    topic = names("items")
    secured.broker.create_topics({topic: 1})
    variables = {"SLUICE_HOME": str(tmp_path / "home"), "SLUICE_KAFKA": json.dumps(secured.kafka)}
    made = replace(Settings.read(variables), linger_ms=15_000)
    running = Running(SparkInProcess.session(), names, copied(names), made, secured.broker)
    running.send("items", b'{"n":0}')
    lasting, kept = LastingAdmin(secured.kafka), silent_admin(secured.kafka)
    seen: list[bool] = []

    def renew() -> None:
        assert wait_until(lambda: bool(running.snapshots()), 60)
        read_lag(kept, [topic], {})
        secured.use("renewed")
        lasting.client()
        time.sleep(5)
        secured.deny_old(topic)
        seen.append(topic in read_lag(kept, [topic], {}).denied)
        seen.append(topic in read_lag(lasting.client(), [topic], {}).denied)
        running.send("items", b'{"n":1}')

    other = threading.Thread(target=renew)
    other.start()
    assert running.run() == 2
    other.join()
    assert seen == [True, False], "a client keeps the certificate with which it was made"
    assert [value["n"] for _, value in running.output("copies")] == [0, 1]
