"""Patterns in lists of topics: which topics they mean, and what the lag and the health say about these topics."""

from __future__ import annotations

import re

from sluice.kafka.unread_records import Lag
from sluice.values.topic_patterns import (
    declared_topics,
    is_pattern,
    matches,
    named_or_matching,
    pattern_text,
)

PATTERN = pattern_text(re.compile("sales_[a-z]+"))


def test_a_pattern_matches_whole_names_but_no_topic_of_kafka() -> None:
    assert [
        topic
        for topic in ("sales_eu", "sales_eu_1", "my_sales_eu", "sales_")
        if matches(PATTERN, topic)
    ] == ["sales_eu"]
    everything = pattern_text(re.compile(".*"))
    assert [
        topic for topic in ("a", "__consumer_offsets", PATTERN) if matches(everything, topic)
    ] == ["a"]
    assert (is_pattern(PATTERN), is_pattern("sales_eu")) == (True, False)
    existing = ["sales_us", "orders", "sales_eu", "other"]
    assert named_or_matching([PATTERN, "orders", "gone"], existing) == [
        "orders",
        "gone",
        "sales_eu",
        "sales_us",
    ]
    assert declared_topics([PATTERN, "sales_us", "sales_eu", "orders"]) == [PATTERN, "orders"]


def test_the_lag_of_a_pattern_is_that_of_the_topics_that_match_it() -> None:
    ends = {"sales_eu": {0: 5}, "sales_us": {0: 2, 1: 3}, "orders": {0: 9}}
    shared = Lag(ends, {}, {})
    lag = shared.of_pipeline([PATTERN], {"sales_eu": {0: 4}, "sales_uk": {0: 7}, PATTERN: {}})
    assert (sorted(lag.ends), lag.unread) == (["sales_eu", "sales_us"], 1 + 5)
    # A topic that was read and is gone is missing, although the pattern still matches others.
    assert lag.missing([PATTERN]) == ["sales_uk"]
    assert Lag({}, {}, {}).missing([PATTERN, "orders"]) == sorted([PATTERN, "orders"])
    assert shared.missing([PATTERN, "orders"]) == []
