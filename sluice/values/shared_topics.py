"""Finds topics that several pipelines write.

Each pipeline alone is valid, so this is not an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sluice.values.phrases import agreeing, joined


@dataclass(frozen=True)
class SharedTopic:
    """A topic that several pipelines write, or that one writes and another keeps for itself."""

    topic: str
    pipelines: tuple[str, ...]
    """The pipelines that write the topic."""
    owner: str = ""
    """The pipeline that uses the topic internally, for example for dead letters; empty if none
    does."""

    def __str__(self) -> str:
        writers = joined(self.pipelines)
        if self.owner:
            write = agreeing(self.pipelines, "writes", "write")
            return (
                f"{writers} {write} the topic {self.topic}, which {self.owner} keeps for itself. "
                f"The next run of {self.owner} may find records there that it cannot read, and "
                "stop. Choose another topic."
            )
        both = "all"
        if len(self.pipelines) == 2:
            both = "both"
        return (
            f"{writers} {both} write the topic {self.topic}. Each writes in its own "
            "transactions, so their records are mixed in any order, and for a key that several of "
            "them write, the latest record decides. If one of them is a copy of another, every "
            "result is in the topic twice."
        )


def shared_topics(outputs: Mapping[str, Collection[str]]) -> list[SharedTopic]:
    """Find the topics that several pipelines write, sorted.

    `outputs`: pipeline → the names of its outputs. Leaves out tables, because the first pipeline
    that writes a table claims it.
    """
    writers: dict[str, list[str]] = {}
    for pipeline, names in sorted(outputs.items()):
        # The name of a table has a colon, which Kafka does not allow in the name of a topic.
        for name in sorted(set(names)):
            if ":" not in name:
                writers.setdefault(name, []).append(pipeline)
    shared: list[SharedTopic] = []
    for topic, pipelines in sorted(writers.items()):
        owner = _owner(topic, outputs)
        others = [pipeline for pipeline in pipelines if pipeline != owner]
        if owner and others:
            shared.append(SharedTopic(topic, tuple(others), owner))
        elif len(pipelines) > 1:
            shared.append(SharedTopic(topic, tuple(pipelines)))
    return shared


def _owner(topic: str, pipelines: Iterable[str]) -> str:
    """Return the pipeline that keeps dead letters or markers in a topic; empty if none does."""
    for ending in ("_dead_letters", "_markers", "_redriven"):
        if topic.endswith(ending) and topic.removesuffix(ending) in pipelines:
            return topic.removesuffix(ending)
    return ""
