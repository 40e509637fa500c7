"""Advances stream time with the clock while no records come. Only with `advance_when_idle`.

When the topics of an operator have had no new records for `advance_when_idle`, the operator's
stream time advances as fast as the clock. From then on, stream time is the largest event time so
far, plus the time since the last record was read, minus `advance_when_idle`. Stream time advances
in this way only in batches without records. A run begins such batches after it has read all
records, so unread records cannot become late. Stream time advances only for operators that hold
back results, and only once such a result is due.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, DUE, IDLE, SEEN, earliest_timer
from sluice.plan import Job, PlannedOperator
from sluice.plan.operator_parameters import ProcessParameters


@dataclass(frozen=True)
class IdleTime:
    """The stream times that follow a batch if there are no further records."""

    job: Job
    times: Mapping[str, int]
    """The stream times after the batch."""
    partitions: Mapping[str, int]
    """Topic → its number of partitions."""

    @property
    def next_batch(self) -> int | None:
        """The earliest time at which a batch without records is needed, epoch ms.

        Such a batch fires wall-clock timers, or sends results because stream time has advanced.
        None if there is neither a timer nor a waiting result.
        """
        begins: list[int] = []
        for operator in self._waiting:
            if not self._follows_waiting(operator):
                begins.append(self._reached_at(operator))
        timer = earliest_timer(self.times)
        if timer is not None:
            begins.append(timer)
        return min(begins, default=None)

    def has_results(self, now: int) -> bool:
        """Return whether a result is due at time `now`, because stream time has advanced."""
        return next(self._due(now), None) is not None

    def at(self, now: int) -> dict[str, int]:
        """Return the stream times of a batch without records that begins at time `now`."""
        times = dict(self.times)
        for operator in self._due(now):
            name = f"{CLOSED}/{operator.clock}"
            times[name] = max(times.get(name, BEFORE_ALL), self._stream_time(operator, now))
            times[f"{IDLE}/{operator.clock}"] = now
        return times

    def _due(self, now: int) -> Iterator[PlannedOperator]:
        """Yield the operators with a result that is due at `now`."""
        for operator in self._waiting:
            if self._reached_at(operator) <= now and not self._follows_waiting(operator, now):
                yield operator

    @cached_property
    def _waiting(self) -> tuple[PlannedOperator, ...]:
        """The operators that hold back results and have received a record."""
        if self.job.pipeline.advance_when_idle_ms is None:
            return ()
        waiting: list[PlannedOperator] = []
        for operator in self.job.operators:
            if operator.name in self._due_of_operators and self._latest(operator) > BEFORE_ALL:
                waiting.append(operator)
        return tuple(waiting)

    @cached_property
    def _due_of_operators(self) -> dict[str, int]:
        """Name of an operator → the stream time at which its earliest result is due."""
        of_operators: dict[str, int] = {}
        for name, due in self.times.items():
            if name.startswith(f"{DUE}/") and due > BEFORE_ALL:
                operator, _, _ = name.removeprefix(f"{DUE}/").rpartition("/")
                of_operators[operator] = min(due, of_operators.get(operator, due))
        return of_operators

    def _follows_waiting(self, operator: PlannedOperator, now: int | None = None) -> bool:
        """Return whether an upstream operator holds back results.

        If stream time advanced for this operator first, the results that the upstream operator
        holds back could become late. A processor holds back only the results of its timers. A
        result has its timer's time, so the results of timers that are not yet due cannot become
        late. A processor therefore counts only if one of its timers is due at `now`.
        """
        before = self._before(operator)
        for other in self._waiting:
            if other.number in before:
                is_timed = isinstance(other.action, ProcessParameters)
                if not is_timed or (now is not None and self._reached_at(other) <= now):
                    return True
        return False

    def _before(self, operator: PlannedOperator) -> set[int]:
        """Return the numbers of all operators whose results can reach this operator."""
        by_number = {planned.number: planned for planned in self.job.operators}
        before: set[int] = set()
        waiting = [operator.number]
        while waiting:
            current = by_number[waiting.pop()]
            inputs: set[int] = set()
            for edge in current.edges:
                inputs.update(edge.results_of)
            if current.chained_to is not None:
                inputs.add(current.chained_to)
            waiting += inputs - before
            before |= inputs
        return before

    def _reached_at(self, operator: PlannedOperator) -> int:
        """Return the clock time at which the operator's earliest result becomes due."""
        ahead = self._due_of_operators[operator.name] - self._latest(operator)
        return self._goes_on_at(operator) + max(ahead, 0)

    def _stream_time(self, operator: PlannedOperator, now: int) -> int:
        return self._latest(operator) + now - self._goes_on_at(operator)

    def _goes_on_at(self, operator: PlannedOperator) -> int:
        """Return the clock time from which stream time advances without records."""
        silence_ms = self.job.pipeline.advance_when_idle_ms
        assert silence_ms is not None
        return self._largest(SEEN, operator) + silence_ms

    def _latest(self, operator: PlannedOperator) -> int:
        """Return the largest event time of the operator's records."""
        return self._largest(operator.clock, operator)

    def _largest(self, name: str, operator: PlannedOperator) -> int:
        """Return the largest time with this name among the partitions of the operator's topics."""
        largest = BEFORE_ALL
        for topic in operator.topics:
            for number in range(self.partitions[topic]):
                largest = max(largest, self.times.get(f"{name}/{topic}/{number}", BEFORE_ALL))
        return largest
