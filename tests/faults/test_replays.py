"""kill -9 in the middle of a replay, a comparison, a promotion and a re-drive: nothing is lost, and nothing doubled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sluice.kafka import dead_letter_topic
from sluice.kafka.dead_letter_topic import DeadLetterFilter
from sluice.kafka.topics import read_topic
from sluice.local.broker import EmbeddedKafka
from tests.faults.conftest import Observe
from tests.faults.dying import calls
from tests.support.api_client import Api, User
from tests.support.states import States

STORE = "totals"
REJECTED = 1_200
"""More dead letters than two transactions take."""
BEFORE, AFTER = {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 7}


@pytest.fixture
def states(tmp_path: Path) -> Iterator[States]:
    """A pipeline with a generation of a replay beside the current one."""
    states = States(f"sqlite:///{tmp_path}/home", workers=2)
    states.publish({key: f"[{value},0]" for key, value in BEFORE.items()})
    shadow = replace(states, generation=2, stores=states.stores)
    shadow.ledger.generations.promote(states.ref)
    shadow.publish({key: f"[{value},0]" for key, value in AFTER.items()})
    yield states
    states.ledger.close()


def seen(states: States) -> dict[str, int]:
    """What a query sees."""
    entries = Api(states.ledger, User()).get(f"/v1/stores/{STORE}", limit=99)["entries"]
    return {entry["key"]: entry["value"] for entry in entries}


@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.heavy)])
@pytest.mark.fault(
    "F26", "kill -9 at several points of making a replayed generation the current one"
)
def test_a_killed_promotion_shows_one_generation_or_the_other(
    states: States, observe: Observe, kills: int
) -> None:
    promote = ("switch", str(states.ledger.engine.url), "orders")
    steps = calls(*promote, "1", environment={})  # the generation that is current already
    chosen = sorted(random.Random().sample(range(1, steps), kills))
    for step in chosen:
        assert not calls(*promote, "2", dying_after=step, environment={})
        assert seen(states) in (BEFORE, AFTER)
    calls(*promote, "2", environment={})
    assert seen(states) == AFTER
    observe(
        f"the promotion was killed at calls {chosen} of {steps}; queries read one generation or the other"
    )


@pytest.mark.parametrize("kills", [2, pytest.param(4, marks=pytest.mark.heavy)])
@pytest.mark.fault("F26", "kill -9 at several points of comparing two generations")
def test_a_killed_comparison_changes_nothing(states: States, observe: Observe, kills: int) -> None:
    compare = ("compare", str(states.ledger.engine.url), STORE, "1.newest", "2.newest")
    steps = calls(*compare, environment={})
    chosen = sorted(random.Random().sample(range(1, steps), kills))
    died = [step for step in chosen if not calls(*compare, dying_after=step, environment={})]
    assert died == chosen
    assert seen(states) == BEFORE
    diff = Api(states.ledger, User()).get(
        f"/v1/stores/{STORE}/diff", before="1.newest", after="2.newest"
    )
    assert {one["key"]: one["kind"] for one in diff["examples"]} == {"b": "changed", "c": "missing"}
    observe(
        f"the comparison was killed at calls {died} of {steps}; both generations are as they were"
    )


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.heavy)])
@pytest.mark.fault("F28", "kill -9 at several points of re-driving dead letters")
def test_a_killed_re_drive_writes_every_record_once(
    kafka: EmbeddedKafka, observe: Observe, kills: int
) -> None:
    config = {"bootstrap.servers": kafka.bootstrap}
    name, undisturbed = f"killed_{kills}", f"counted_{kills}"
    for each in (name, undisturbed):
        reject(kafka, each)
    steps = calls("redrive", kafka.bootstrap, undisturbed, undisturbed, environment={})
    redrive = ("redrive", kafka.bootstrap, name, name)
    # In the first half of the calls, dead letters are read.
    chosen = sorted(random.Random().sample(range(steps // 2, steps), kills))
    died = [step for step in chosen if not calls(*redrive, dying_after=step, environment={})]
    calls(*redrive, environment={})
    written = Counter(record.value() for record in read_topic(config, name))
    assert written == Counter(b"%d" % number for number in range(REJECTED))
    markers = dead_letter_topic.find_dead_letters(
        config, name, DeadLetterFilter(), REJECTED
    ).markers.values()
    assert len({(marker.topic, marker.partition, marker.offset) for marker in markers}) == REJECTED
    assert died, "no re-drive was killed before it ended"
    observe(
        f"the re-drive was killed at calls {died} of {steps}; each of {REJECTED:,} records was written once"
    )


def reject(kafka: EmbeddedKafka, name: str) -> None:
    """Write the dead letters of a pipeline that reads the topic `name`."""
    kafka.create_topics({name: 2, dead_letter_topic.topic_of(name): 1})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(REJECTED):
        place = {"reason": "contract", "topic": name, "partition": number % 2, "offset": 0}
        headers: list[tuple[str, str | bytes | None]] = [
            (f"sluice.{header}", str(text).encode()) for header, text in place.items()
        ]
        producer.produce(dead_letter_topic.topic_of(name), b"%d" % number, headers=headers)
    assert producer.flush(60) == 0
