"""All topics of a run. One request to a broker shows whether they are still the same topics.

A run makes this request when it begins, before the output of each batch, when it has read all
records, and while it lingers. The connection to the broker stays open, so a request takes only
about a millisecond.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import structlog
from confluent_kafka.admin import AdminClient, TopicDescription  # type: ignore[attr-defined]

from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.engine.publish.output_identity import OutputIdentity
from sluice.engine.read.source_identity import Positions, SourceIdentity
from sluice.errors import AccessDenied, BrokersUnreachable, EngineError, OutputError
from sluice.kafka.brokers import ANSWER_SECONDS, broker_errors, silent_admin
from sluice.kafka.denied_operations import READ, WRITE, access_denied, denied_on
from sluice.kafka.topics import described_topics, ids_of
from sluice.state.ledger.audits import SourceAudit
from sluice.state.ledger.sources import SourcePartition
from sluice.values.record_places import Partition

log = structlog.get_logger()

_SETTLED_S = 2.0
"""A broker learns of a new topic with a short delay. If it lacks a topic for longer than this, the
topic was deleted."""
_PAUSE_S = 0.1
_WATCH_S = 5.0
"""How long a run lingers until it checks again whether it could write."""


@dataclass
class RunTopics:
    """The topics that a run reads and writes."""

    kafka: Mapping[str, str] = field(repr=False)
    sources: SourceIdentity
    outputs: OutputIdentity | None
    """The identity of the topics that the run writes; None for a rebuild, which writes no
    output."""
    _watched_at: float = field(default_factory=time.monotonic, init=False)
    _is_away: bool = field(default=False, init=False)
    """Whether no broker has answered the last request."""

    def require_access(self) -> Mapping[str, str]:
        """Raise AccessDenied if Kafka denies an operation that the run needs.

        Return the ids of the topics that exist.
        """
        described = self._described(with_operations=True)
        if denied := denied_on(described, self._needed):
            raise access_denied(self.kafka, denied)
        return ids_of(described)

    def require_never_written(self, ids: Mapping[str, str]) -> None:
        """Raise OutputError if the pipeline has written to a topic that does not exist.

        `ids`: topic → its id.
        """
        outputs = self.outputs
        if outputs is not None and not ids.keys() >= {*outputs.outputs}:
            self._when_settled(outputs.require_never_written)

    def begin(self, output: TransactionalOutput) -> None:
        """Expect the topics that exist now to stay the same for the whole run.

        Raise OutputError if the pipeline has written its newest batch to other topics.
        """
        outputs = self.outputs
        if outputs is not None:
            self._when_settled(lambda ids: outputs.begin(output.newest_marker, ids))
            output.topic_ids = outputs.ids
            output.why_unwritable = self.why_unwritable

    def check_batch(self, read: Sequence[SourceAudit]) -> Sequence[SourcePartition]:
        """Raise InputError or OutputError if a topic was deleted or truncated during the run.

        `read` and the result: see `SourceIdentity.check_batch`.
        """
        ids = ids_of(self._described())
        sources = self.sources.check_batch(read, ids)
        if self.outputs is not None and not self.outputs.is_same(ids):
            self.check_outputs()
        return sources

    def require_reached(self, positions: Positions, ends: Mapping[Partition, int]) -> None:
        """Raise InputError if a partition ends before the offset up to which it was read."""
        self.sources.require_reached(positions, ends)

    def check_outputs(self) -> None:
        """Raise OutputError if a topic that the run writes was deleted since the run began."""
        if self.outputs is not None:
            self._when_settled(self.outputs.require_same)

    def why_unwritable(self) -> EngineError | None:
        """Return why the run cannot continue: an output was deleted, or Kafka denies an operation.

        Return None if there is no reason, or while no broker answers.
        """
        try:
            self.check_outputs()
            self.require_access()
        except (OutputError, AccessDenied) as reason:
            return reason
        except BrokersUnreachable as away:
            if not self._is_away:
                log.warning("waiting for the broker", why=away.detail)
            self._is_away = True
            return None
        self._is_away = False
        return None

    def watch(self) -> None:
        """Raise the error of `why_unwritable`, if any. Ask the broker only every few seconds."""
        if time.monotonic() >= self._watched_at + _WATCH_S:
            self._watched_at = time.monotonic()
            if (reason := self.why_unwritable()) is not None:
                raise reason

    def _when_settled(self, check: Callable[[Mapping[str, str]], object]) -> None:
        """Call a check with the topics' ids. Repeat it for a while if it raises OutputError."""
        until = time.monotonic() + _SETTLED_S
        while True:
            try:
                check(ids_of(self._described()))
                return
            except OutputError:
                if time.monotonic() > until:
                    raise
            time.sleep(_PAUSE_S)

    def _described(self, *, with_operations: bool = False) -> Mapping[str, TopicDescription]:
        with broker_errors(self.kafka):
            return described_topics(
                self._admin,
                self._needed,
                ANSWER_SECONDS,
                with_operations=with_operations,
            )

    @cached_property
    def _needed(self) -> Mapping[str, frozenset[str]]:
        """Topic → the operations that the run needs."""
        needed: dict[str, frozenset[str]] = {}
        for topic in self.sources.topics:
            needed[topic] = frozenset({READ})
        if self.outputs is not None:
            for topic in self.outputs.topics:
                needed[topic] = needed.get(topic, frozenset()) | {WRITE}
            markers = self.outputs.writer.markers
            needed[markers] |= {READ}
        return needed

    @cached_property
    def _admin(self) -> AdminClient:
        return silent_admin(self.kafka)
