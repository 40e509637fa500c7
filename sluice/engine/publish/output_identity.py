"""Checks that a pipeline's output topics have not been deleted and created again.

A topic that is deleted and created again has lost the records that the pipeline had written, and
perhaps its settings. Therefore the marker of each batch has the ids of the topics that the batch
was written to. A run compares these ids with the topics' current ids: before it creates a missing
topic, before each batch's output, and at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.engine.publish.kafka_transaction import lost_markers
from sluice.engine.publish.markers import Marker, Writer, newest_until, read_markers
from sluice.errors import OutputError


@dataclass
class OutputIdentity:
    """The topics that a generation of a pipeline writes, identified by Kafka's ids."""

    kafka: Mapping[str, str] = field(repr=False)
    writer: Writer
    outputs: Sequence[str]
    """The topics of outputs and of dead letters."""
    dead_letters: str
    """The topic of dead letters."""
    ids: Mapping[str, str] = field(default_factory=dict)
    """Topic → the id that the run expects; empty before `begin`."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of outputs, of dead letters and of markers."""
        return (*self.outputs, self.writer.markers)

    def require_never_written(self, ids: Mapping[str, str]) -> None:
        """Raise OutputError if the pipeline has written to a topic that does not exist.

        `ids`: topic → its id now.

        If the topic of markers is missing, do nothing: either the pipeline has written nothing yet,
        or another check reports the loss.
        """
        if self.writer.markers in ids:
            markers = read_markers(self.kafka, self.writer)
            self._require_as_written(newest_until(markers, self.writer.ref.generation), ids)

    def begin(self, marker: Marker | None, ids: Mapping[str, str]) -> None:
        """Expect from now on that the topics keep these ids.

        Raise OutputError if the newest batch was written to other topics. `marker` is the marker
        of this batch; None if nothing has been written yet.
        """
        self._require_as_written(marker, ids)
        own: dict[str, str] = {}
        for topic in self.topics:
            if topic in ids:
                own[topic] = ids[topic]
        self.ids = own

    def _require_as_written(self, marker: Marker | None, ids: Mapping[str, str]) -> None:
        for topic in changed_topics(marker, self.outputs, ids):
            raise self._error(topic, ids.get(topic))

    def is_same(self, ids: Mapping[str, str]) -> bool:
        """Return whether no topic was deleted since `begin`."""
        return all(ids.get(topic) == expected for topic, expected in self.ids.items())

    def require_same(self, ids: Mapping[str, str]) -> None:
        """Raise OutputError if a topic was deleted since `begin`."""
        for topic, expected in self.ids.items():
            if ids.get(topic) != expected:
                raise self._error(topic, ids.get(topic))

    def _error(self, topic: str, now: str | None) -> OutputError:
        name = self.writer.ref.pipeline
        happened, create = "was deleted and created again", ""
        if now is None:
            happened = "was deleted"
            create = "create the topic, or let the next run create it, and "
        if topic == self.writer.markers:
            return lost_markers(f"The topic {topic} {happened} during the run.", name)
        records = "records"
        if topic == self.dead_letters:
            records = "dead letters"
        return OutputError(
            f"Topic {topic} {happened}: the {records} that {name} had written to it are gone. The "
            "published state is complete.",
            next_step=f"To go on without these {records}, {create}accept the loss: sluice topics "
            f"accept {name}. If you have written all {records} back from a copy: sluice topics "
            f"accept {name} --restored. To have them written again, give the pipeline another "
            "name, under which it reads its topics from their beginning.",
        )


def changed_topics(
    marker: Marker | None,
    topics: Iterable[str],
    ids: Mapping[str, str],
) -> list[str]:
    """Return the topics to which the marker's batch was written and that have since been deleted.

    `ids`: topic → its id now.
    """
    if marker is None:
        return []
    changed: list[str] = []
    for topic in topics:
        if topic in marker.ids and marker.ids[topic] != ids.get(topic):
            changed.append(topic)
    return changed
