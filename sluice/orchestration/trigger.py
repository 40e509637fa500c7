"""Starts a pipeline when its topics have unread records or one of its timers is due.

Records that arrive in a burst cause one event, which starts one run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import structlog
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from sluice.airflow_connections import KAFKA
from sluice.answers import FailureKind
from sluice.engine.run.driver_lease import PATIENCE
from sluice.errors import BrokersUnreachable, InputAway, SluiceError
from sluice.kafka.open_transactions import HELD_SECONDS, HeldPartitions
from sluice.kafka.unread_records import Lag, Offsets
from sluice.observe.health import held_failure, input_away, not_started
from sluice.orchestration.watch import POLL_SECONDS, Observation, Watch
from sluice.settings import settings
from sluice.state.ledger.failures import SLOT_SECONDS, Failure
from sluice.state.ledger.leases import LeaseRow
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef

_LONGEST_PAUSE_S = 5.0
_LONGEST_BACK_OFF_S = 3_600.0
"""The longest time between two runs for the same records."""
_TEXT_SECONDS = 10.0
"""The shortest time between two changes of a failure's text."""
_NOTICEABLE_S = 2.0
"""The time of the next run in the ledger is corrected if it is wrong by more than this."""

log = structlog.get_logger(__name__)


class BackOff(NamedTuple):
    """The pause between two events for the same records."""

    since_event_s: float
    """Seconds since the earlier event."""
    until_event_s: float
    """Seconds until the later event."""


@dataclass
class Burst:
    """Decides when new records cause an event.

    An event is due when the end offsets have not changed for `settle_s`, or `max_wait_s` after the
    first new record. The next event can be due after the pipeline has read up to the offsets of the
    last event. The pipeline may never reach these offsets, because its run failed and Airflow's
    retries are used up. The next event can then be due after `patience_s`, because the cause of the
    failure may have passed. This time doubles with each further event, up to an hour. If the same
    run would only fail again, the next event needs new records.
    """

    settle_s: float
    max_wait_s: float
    patience_s: float
    min_interval_s: float = 0.0
    _seen: Offsets | None = None
    _first_at: float = 0.0
    _same_since: float = 0.0
    _fired: Offsets | None = None
    _fired_at: float = 0.0
    """When the last event was due."""
    _busy_at: float = 0.0
    """The latest time at which an event was due, a driver was seen at work, or a run failed."""
    _unanswered_since: float | None = None
    """When the first event since a driver was last seen at work was due; None if none has been due
    since then."""
    attempts: int = field(default=0, init=False)
    """The number of events since the pipeline last read up to the offsets of an event."""
    _ever: bool = False

    def remember(self, ago_s: float, now: float) -> None:
        """Count `min_interval_s` from a run that an earlier triggerer started `ago_s` ago."""
        self._ever, self._fired_at = True, now - ago_s

    def hold(self) -> None:
        """Forget the events so far, because the pipeline is paused."""
        self._seen, self._fired, self._unanswered_since, self.attempts = None, None, None, 0

    def note_failure(self, at: float) -> None:
        """Begin the pause before the next event when a run failed, even if no driver was seen."""
        self._busy_at = max(self._busy_at, at)

    def due(self, lag: Lag, now: float, *, driven: bool = False, is_lasting: bool = False) -> bool:
        """Return whether an event is due at `now`, in seconds of a monotonic clock.

        No event is due while a driver runs. `is_lasting`: the last run has failed with an error
        with which the same run would fail again.
        """
        # Records that an open transaction holds back are not readable. A run could not read them.
        if lag.readable == 0:
            self.hold()
            return False
        # A driver may linger and read the new records itself.
        if driven:
            self._seen, self._unanswered_since, self._busy_at = None, None, now
            return False
        if self._waits_for_run(lag, now, is_lasting=is_lasting):
            return False
        if self._ever and now - self._fired_at < self.min_interval_s:
            return False
        # `max_wait_s` counts from the first new records of the burst.
        if self._seen is None:
            self._first_at = now
        if lag.ends != self._seen:
            self._seen, self._same_since = lag.ends, now
        if now - self._same_since < self.settle_s and now - self._first_at < self.max_wait_s:
            return False
        # The next burst begins after the records of this event.
        self._seen, self._fired, self._fired_at, self._busy_at = None, lag.ends, now, now
        if self._unanswered_since is None:
            self._unanswered_since = now
        self.attempts += 1
        self._ever = True
        return True

    def unanswered_s(self, now: float) -> float:
        """Return the seconds since the first unanswered event; 0 if there is none."""
        return 0.0 if self._unanswered_since is None else now - self._unanswered_since

    def back_off(self, now: float) -> BackOff | None:
        """Return the pause between two events for the same records.

        Return None if no event is waiting for a run.
        """
        if self._fired is None:
            return None
        return BackOff(now - self._fired_at, max(self._busy_at + self._back_off_s() - now, 0.0))

    def _back_off_s(self) -> float:
        back_off_s: float = self.patience_s * 2 ** (self.attempts - 1)
        return min(back_off_s, max(_LONGEST_BACK_OFF_S, self.patience_s))

    def _waits_for_run(self, lag: Lag, now: float, *, is_lasting: bool) -> bool:
        """Return whether the last event's run may still read the records, or has just failed."""
        if self._fired is None or _reaches(lag.positions, self._fired):
            self.attempts = 0
            return False
        # The same run would only fail again, so the next event needs new records.
        if is_lasting and lag.ends == self._fired:
            return True
        return now - self._busy_at < self._back_off_s()


@dataclass
class DueTimers:
    """Decides when a timer on the wall clock causes an event.

    If the timer is still due `patience_s` after its event, the run has failed, so the event is
    repeated. The time until the next repetition doubles, up to an hour.
    """

    patience_s: float
    _fired: int | None = None
    """The time of the timer that caused the last event, in epoch ms."""
    _busy_at: float = 0.0
    """The latest time at which an event was due, or a driver was seen at work."""
    _attempts: int = 0

    def due(self, next_timer: int | None, clock_ms: float, now: float, *, driven: bool) -> bool:
        """Return whether an event is due at `now`, in seconds of a monotonic clock.

        `clock_ms` is the time of the wall clock.

        No event is due while a driver runs, because the driver fires the timers itself.
        """
        if driven:
            self._busy_at = now
            return False
        if next_timer is None or clock_ms < next_timer:
            return False
        waited = now - self._busy_at
        if next_timer == self._fired and waited < min(
            self.patience_s * 2 ** (self._attempts - 1), _LONGEST_BACK_OFF_S
        ):
            return False
        self.expect_run(next_timer, clock_ms, now)
        return True

    def expect_run(self, next_timer: int | None, clock_ms: float, now: float) -> None:
        """Record that an event will start a run. The run also fires the timer if the timer is due.

        Call this also for events that unread records have caused.
        """
        if next_timer is not None and next_timer <= clock_ms:
            self._attempts = self._attempts + 1 if next_timer == self._fired else 1
            self._fired, self._busy_at = next_timer, now


@dataclass
class DriverWatch:
    """Detects whether a pipeline's driver is running.

    A running driver holds the lease and renews it.
    """

    silence_s: float
    """How long a lease counts as held after its last renewal."""
    _lease: LeaseRow | None = None
    _since: float = 0.0

    def is_running(self, lease: LeaseRow | None, now: float) -> bool:
        """Return whether a driver is running at `now`, in seconds of a monotonic clock."""
        if lease != self._lease:
            self._lease, self._since = lease, now
        return lease is not None and lease.held and now - self._since < self.silence_s


def _reaches(positions: Offsets, ends: Offsets) -> bool:
    for topic, partitions in ends.items():
        read = positions.get(topic, {})
        if any(read.get(partition, 0) < end for partition, end in partitions.items()):
            return False
    return True


class KafkaEndOffsetTrigger(BaseEventTrigger):
    """Fires when `topics` have records beyond the offsets that `pipeline` has read.

    It also fires when one of the pipeline's timers on the wall clock is due.

    By default, it does not wait for the end of a burst. Spark takes seconds to start, and the run
    also reads all records that arrive until then. If `settle_seconds` is set, it waits
    until no record has arrived for that time, but at most `max_wait_seconds`.

    The trigger gets only end offsets from the broker; it reads no records and commits nothing. The
    ledger has the offsets up to which runs have read, and the times at which runs began. After its
    triggerer was restarted, the trigger therefore fires only for unread records. It then waits
    until `min_interval_seconds` have passed since the beginning of the last run that published
    something. It does
    not fire while a driver works on the pipeline, because the driver may linger and read the
    records itself.

    If the broker, a topic or the ledger cannot be reached, the trigger logs this once and waits. It
    also records in the ledger that the pipeline waits for its input, until the input is back.
    """

    def __init__(
        self,
        pipeline: str,
        topics: list[str],
        kafka_config_id: str = KAFKA,
        poll_seconds: float = POLL_SECONDS,
        settle_seconds: float = 0.0,
        max_wait_seconds: float = 15.0,
        patience_seconds: float = 600.0,
        min_interval_seconds: float = 0.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pipeline = pipeline
        self.topics = list(topics)
        self.kafka_config_id = kafka_config_id
        self.poll_seconds = poll_seconds
        self.settle_seconds = settle_seconds
        self.max_wait_seconds = max_wait_seconds
        self.patience_seconds = patience_seconds
        self.min_interval_seconds = min_interval_seconds
        self._watch: Watch | None = None
        self._held = HeldPartitions()
        self._next_text = 0.0
        self.trouble = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments from which Airflow recreates this trigger."""
        names = (
            "pipeline",
            "topics",
            "kafka_config_id",
            "poll_seconds",
            "settle_seconds",
            "max_wait_seconds",
        )
        arguments = {
            name: getattr(self, name)
            for name in (*names, "patience_seconds", "min_interval_seconds")
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each burst of records, forever."""
        burst = Burst(
            self.settle_seconds,
            self.max_wait_seconds,
            self.patience_seconds,
            self.min_interval_seconds,
        )
        timers = DueTimers(self.patience_seconds)
        driver = DriverWatch(PATIENCE.silence_s)
        pause = self.poll_seconds
        self._watch = Watch.shared(self.kafka_config_id, self.poll_seconds)
        self._watch.join(self, frozenset(self.topics))
        is_first = True
        while True:
            # All triggers wake up at the same moments, so that the first trigger reads the broker
            # and the ledger for all of them.
            await asyncio.sleep(pause - time.monotonic() % pause)
            seen = await self._look(self._watch, burst if is_first else None)
            # A broker that is being restarted is asked less and less often.
            pause = self.poll_seconds if seen else min(pause * 2, _LONGEST_PAUSE_S)
            if seen is not None and seen.is_paused:
                # No event is due while the pipeline is paused. An event for unread records is due
                # as soon as the pipeline is resumed.
                burst.hold()
                await self._note("held", None, seen.failures)
                await self._note("slot", None, seen.failures)
            elif seen is not None:
                is_first = False
                now, clock_ms = time.monotonic(), time.time() * 1_000
                failed = seen.failures.get("run")
                is_lasting = failed is not None and failed.is_lasting
                is_driven = driver.is_running(seen.lease, now)
                if failed is not None:
                    # A driver that fails soon may hold the lease too shortly for the trigger to see
                    # the lease. But the failure in the ledger shows that the driver has run.
                    ago = (datetime.now(UTC) - failed.seen_at).total_seconds()
                    burst.note_failure(now - max(ago, 0.0))
                is_due = burst.due(seen.lag, now, driven=is_driven, is_lasting=is_lasting)
                await self._note(
                    "held", held_back(self.pipeline, seen.lag, self._held), seen.failures
                )
                await self._note(
                    "slot", self._no_slot(burst.unanswered_s(now), failed), seen.failures
                )
                await self._note_next_run(failed, burst.back_off(now))
                if is_due:
                    records, ends = seen.lag.readable, seen.lag.ends
                    log.info(
                        "records to read",
                        pipeline=self.pipeline,
                        records=records,
                        attempt=burst.attempts,
                    )
                    timers.expect_run(seen.next_timer, clock_ms, now)
                    yield TriggerEvent(  # type: ignore[no-untyped-call]
                        {"pipeline": self.pipeline, "records": records, "ends": ends}
                    )
                elif timers.due(seen.next_timer, clock_ms, now, driven=is_driven):
                    log.info("a timer is due", pipeline=self.pipeline, timer=seen.next_timer)
                    yield TriggerEvent(  # type: ignore[no-untyped-call]
                        {"pipeline": self.pipeline, "records": 0, "timer": seen.next_timer}
                    )

    async def cleanup(self) -> None:
        if self._watch is not None:
            await self._watch.leave(self)
            self._watch = None

    async def _look(self, watch: Watch, new: Burst | None) -> Observation | None:
        """Observe the pipeline, and tell the burst, if it is `new`, when the last run began.

        An earlier triggerer may have started that run. While the broker, a topic or the ledger is
        unreachable, return None, and log this once.
        """
        try:
            seen = await watch.observe(self.pipeline, frozenset(self.topics))
            if new is not None and new.min_interval_s:
                began = await asyncio.to_thread(_last_run_began, self.pipeline)
                if began is not None:
                    new.remember(max(time.time() - began, 0.0), time.monotonic())
        except BrokersUnreachable as error:
            await self._wait(str(error), "no broker", InputAway(error.detail))
            return None
        except (SluiceError, OSError) as error:
            await self._wait(f"{type(error).__name__}: {error}")
            return None
        missing = seen.lag.missing(self.topics)
        if missing:
            away = input_away(missing, read=seen.lag.positions, denied=seen.lag.denied)
            await self._wait(f"cannot find the topic {', '.join(missing)}", away=away)
            return None
        if self.trouble:
            log.info("reachable again", pipeline=self.pipeline)
        await self._note("input", None, seen.failures)
        self.trouble = ""
        return seen

    async def _note(
        self, kind: FailureKind, failure: Failure | None, recorded: Mapping[FailureKind, Failure]
    ) -> None:
        """Record a failure in the ledger, keep its text current, and remove it once it is over."""
        before = recorded.get(kind)
        if failure is None or before is None:
            if failure is not before:
                await asyncio.to_thread(_note_failure, self.pipeline, kind, failure)
        # Airflow's API server knows more about a missing slot than this trigger does.
        elif kind != "slot" and failure.detail != before.detail and self._may_change_text():
            await asyncio.to_thread(_change_failure, before, detail=failure.detail)

    def _may_change_text(self) -> bool:
        """Return whether the text of a failure may change now.

        Without this limit, each new record would change the text.
        """
        now = time.monotonic()
        if now < self._next_text:
            return False
        self._next_text = now + _TEXT_SECONDS
        return True

    async def _note_next_run(self, failed: Failure | None, pause: BackOff | None) -> None:
        """Record when the next run starts, if the last run failed and Airflow gives up on it."""
        if failed is None or pause is None or failed.is_lasting or not failed.is_given_up:
            return
        now = datetime.now(UTC)
        # A failure that is older than the last event says nothing about the run of this event.
        if failed.seen_at < now - timedelta(seconds=pause.since_event_s):
            return
        starts_at = now + timedelta(seconds=pause.until_event_s)
        noted = failed.repeats_at
        if noted is None or abs((noted - starts_at).total_seconds()) > _NOTICEABLE_S:
            await asyncio.to_thread(_change_failure, failed, repeats_at=starts_at)

    def _no_slot(self, unanswered_s: float, failed: Failure | None) -> Failure | None:
        """Return the failure of a pipeline whose run does not start.

        Return None if `unanswered_s` is less than `SLOT_SECONDS`.
        """
        since = datetime.now(UTC) - timedelta(seconds=unanswered_s)
        # If a run has failed since the unanswered event, Airflow has started this run, although no
        # driver has taken the lease.
        if unanswered_s < SLOT_SECONDS or (failed is not None and failed.seen_at >= since):
            return None
        return not_started(self.pipeline, since)

    async def _wait(self, trouble: str, kind: str = "", away: InputAway | None = None) -> None:
        """Log why the trigger waits, once per kind.

        librdkafka has many messages for the same problem. If the input is `away`, record it in the
        ledger.
        """
        kind = kind or trouble
        if kind != self.trouble:
            log.warning("waiting", pipeline=self.pipeline, trouble=trouble)
            if away is not None:
                failure = Failure.of(away, self.pipeline, kind="input", secrets=settings().secrets)
                await asyncio.to_thread(_note_failure, self.pipeline, "input", failure)
        self.trouble = kind


def held_back(pipeline: str, lag: Lag, held: HeldPartitions) -> Failure | None:
    """Return the failure of a pipeline whose records a transaction has held back for long.

    Return None if there is no such transaction.
    """
    now = datetime.now(UTC)
    since = held.since(lag, now)
    if since is None or (now - since).total_seconds() <= HELD_SECONDS:
        return None
    return held_failure(pipeline, lag, since)


def _note_failure(pipeline: str, kind: FailureKind, failure: Failure | None) -> None:
    with suppress(SluiceError, OSError), Ledger.open(settings().ledger) as ledger:
        if failure is None:
            ledger.failures.clear(pipeline, kind)
        else:
            ledger.failures.keep(failure)


def _change_failure(failure: Failure, **values: Any) -> None:
    with suppress(SluiceError, OSError), Ledger.open(settings().ledger) as ledger:
        ledger.failures.change(failure, **values)


def _last_run_began(pipeline: str) -> float | None:
    with Ledger.open(settings().ledger) as ledger:
        return last_run_began(ledger, pipeline)


def last_run_began(ledger: Ledger, pipeline: str) -> float | None:
    """Return when the newest run that has published a snapshot began its first batch, in epoch s.

    Return None if there is no such run.
    """
    generation = ledger.generations.current_number(pipeline)
    if generation is None:
        return None
    ref = GenerationRef(pipeline, generation)
    first = ledger.snapshots.first_of_newest_run(ref)
    batch = None if first is None else ledger.history.get(ref, first)
    return None if batch is None else batch.begun / 1_000
