"""Operations that Kafka's access control denies to this client, and the error that names them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, TopicDescription  # type: ignore[attr-defined]

from sluice.errors import AccessDenied

CREATE, DELETE, DESCRIBE, READ, WRITE = "CREATE", "DELETE", "DESCRIBE", "READ", "WRITE"
"""Operations, by their names in Kafka's access control lists."""

_KINDS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional-id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}
"""Error code → the kind of the resource, as in the options of `kafka-acls.sh`."""
_UNKNOWN = "(unknown)"


@dataclass(frozen=True)
class Operation:
    """An operation on a resource of Kafka."""

    name: str
    kind: str
    """The kind of the resource, as in options of `kafka-acls.sh`, such as `topic`."""
    resource: str
    """The name of the resource; empty for the cluster."""

    def __str__(self) -> str:
        return f"{self.name} on the {self.kind.replace('-', ' ')} {self.resource}".rstrip()

    @property
    def options(self) -> str:
        """The options of `kafka-acls.sh` that select this operation."""
        return f"--operation {self.name} --{self.kind} {self.resource}".rstrip()


class DeniedOperation(KafkaException):
    """A KafkaException that says which operation was denied."""

    def __init__(self, error: KafkaError, operation: Operation) -> None:
        super().__init__(error)
        self.operation = operation


def on_topic(operation: str, topic: str) -> Operation:
    """Make an operation on a topic."""
    return Operation(operation, "topic", topic)


def is_denial(error: KafkaError) -> bool:
    """Return whether Kafka has denied an operation."""
    return error.code() in _KINDS


@contextmanager
def denial_named(
    operation: str,
    topic: str = _UNKNOWN,
    transactional_id: str = _UNKNOWN,
) -> Iterator[None]:
    """If Kafka denies the operation in the block, raise a DeniedOperation, which names it.

    Other KafkaExceptions are passed on unchanged.
    """
    try:
        yield
    except KafkaException as error:
        reason = error.args[0]
        if isinstance(error, DeniedOperation) or not is_denial(reason):
            raise
        kind = _KINDS[reason.code()]
        resource = {"topic": topic, "transactional-id": transactional_id}.get(kind, _UNKNOWN)
        denied = Operation(operation, kind, resource)
        if kind == "cluster":
            # An idempotent producer needs this operation, unless it may write to at least one
            # topic.
            denied = Operation("IDEMPOTENT_WRITE" if operation == WRITE else operation, kind, "")
        raise DeniedOperation(reason, denied) from None


def denial(kafka: Mapping[str, str], error: KafkaException) -> AccessDenied | None:
    """Make the error to raise if Kafka has denied an operation; None for other exceptions."""
    if isinstance(error, DeniedOperation):
        return access_denied(kafka, [error.operation])
    reason: KafkaError = error.args[0]
    if is_denial(reason):
        return access_denied(kafka, [Operation(_UNKNOWN, _KINDS[reason.code()], _UNKNOWN)])
    return None


def denied_on(
    described: Mapping[str, TopicDescription],
    needed: Mapping[str, Iterable[str]],
) -> list[Operation]:
    """List the needed operations that the broker denies. `needed`: topic → its operations.

    The topics must have been described with their operations. If a broker does not list the allowed
    operations, this assumes that all are allowed.
    """
    denied: list[Operation] = []
    for topic, description in described.items():
        allowed = description.authorized_operations or ()
        # A client gets a description only if it may describe the topic. So if even this operation
        # is missing, the broker does not list the allowed operations.
        if AclOperation.DESCRIBE in allowed:
            for name in sorted(needed[topic]):
                if AclOperation[name] not in allowed:
                    denied.append(on_topic(name, topic))
    return denied


def topic_denied(kafka: Mapping[str, str], operation: str, topic: str) -> AccessDenied:
    """Make the error for a denied operation on a topic."""
    return access_denied(kafka, [on_topic(operation, topic)])


def access_denied(kafka: Mapping[str, str], operations: Sequence[Operation]) -> AccessDenied:
    """Make the error for denied operations.

    The error names this client, and commands that allow the operations.
    """
    denied = ", and ".join(map(str, operations))
    return AccessDenied(
        f"Kafka at {_address(kafka)} denies {client_name(kafka)} {denied}.",
        next_step=f"Allow it: {allowing_commands(kafka, operations)}. Also remove rules that deny "
        "it: kafka-acls.sh --list shows them.",
    )


def client_name(kafka: Mapping[str, str]) -> str:
    """Return the name under which Kafka knows this client, for a message."""
    user = kafka.get("sasl.username", "")
    if not user:
        return "this client"
    return f"the user {user}"


def allowing_commands(kafka: Mapping[str, str], operations: Iterable[Operation]) -> str:
    """Return the commands that allow the operations to this client."""
    principal = f"User:{kafka.get('sasl.username', '') or 'NAME'}"
    command = f"kafka-acls.sh --bootstrap-server {_address(kafka)} --add"
    allow = f"{command} --allow-principal {principal}"
    return "; ".join(f"{allow} {operation.options}" for operation in operations)


def _address(kafka: Mapping[str, str]) -> str:
    return kafka.get("bootstrap.servers", "an unset address")
