"""Topics that several pipelines write, and what happens to them."""

from __future__ import annotations

from sluice.values.shared_topics import shared_topics


def texts(**outputs: list[str]) -> list[str]:
    return [str(shared) for shared in shared_topics(outputs)]


def test_each_pipeline_has_its_own_topics() -> None:
    assert texts(a=["x", "x"], b=["y", "a_totals"]) == []


def test_two_pipelines_write_a_topic() -> None:
    (text,) = texts(b=["x", "y"], a=["x"])
    assert text.startswith("a and b both write the topic x. Each writes in its own transactions")
    assert "every result is in the topic twice" in text
    (text,) = texts(a=["x"], b=["x"], c=["x"])
    assert text.startswith("a, b and c all write the topic x.")


def test_a_pipeline_writes_a_topic_that_another_one_keeps_for_itself() -> None:
    for topic in ("b_markers", "b_dead_letters", "b_redriven"):
        (text,) = texts(a=[topic], b=["y"])
        assert text.startswith(f"a writes the topic {topic}, which b keeps for itself.")


def test_tables_are_claimed_when_they_are_written() -> None:
    assert texts(a=["warehouse:totals"], b=["warehouse:totals"]) == []
