"""Calls services or databases for an operator, and records the answers in the worker's shard.

An answer is stored under the record and the input for which it was given. So a batch that is
repeated after a crash makes calls only for rows without a recorded answer. A rebuild copies the
answers, and repeats none of the calls.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

import msgspec
import pyarrow as pa

from sluice.engine.batch.rejections import describe_error, run_ending_error, step_error, subject_of
from sluice.engine.batch.row_schemas import Position, has_origin, offset_of, partition_of
from sluice.engine.stages.batch_states import BatchStates
from sluice.engine.stages.operator_rows import OperatorRows
from sluice.engine.stages.stage_output import StageOperator, StageOutput
from sluice.operators.base import Answered, Asking, Row, rejects_record
from sluice.plan.operator_parameters import CallParameters, TableLookupParameters
from sluice.state.shard.answer_rows import RecordedAnswer

NO_ANSWERS: Mapping[int, RecordedAnswers] = MappingProxyType({})
_Placed = tuple[Position, Row]


@dataclass(frozen=True)
class RecordedAnswers:
    """The answers of one operator in one batch."""

    spec: StageOperator
    operator: Asking
    stored: BatchStates
    topics: Mapping[int, str]
    """Source number → its topic."""

    def process(self, rows: OperatorRows, output: StageOutput) -> Iterator[pa.RecordBatch]:
        """Send the results of all rows to `output`, in order.

        Whenever there are many results, yields them.
        """
        waiting = rows.in_order().rows()
        while turn := list(islice(waiting, self.operator.rows_at_once)):
            answers = self._answers(turn)
            for (position, row), answer in zip(turn, answers, strict=True):
                output.operator, output.row, output.headers = self.spec, row, row.headers
                output.start_row(position, row.after)
                output.hold()
                self.operator.send(row, answer, output)
                output.release()
            if output.has_many_rows:
                yield from output.take()

    def _answers(self, turn: Sequence[_Placed]) -> list[Answered]:
        """Return the answers of these rows; an empty answer for a row that needs none."""
        ids: list[str] = []
        # Rows with the same id are the same input of the same record, so they share a call.
        row_of_id: dict[str, Row] = {}
        for position, row in turn:
            answer_id = ""
            if self.operator.needs_answer(row):
                answer_id = self._id(position, row)
                row_of_id.setdefault(answer_id, row)
            ids.append(answer_id)
        answers = self._recorded(list(row_of_id))
        for answered in answers:
            del row_of_id[answered]
        if row_of_id:
            answers |= self._ask(row_of_id)
        answers[""] = Answered()
        return [answers[each] for each in ids]

    def _ask(self, asked: Mapping[str, Row]) -> dict[str, Answered]:
        """Make the calls for these rows, and record the answers.

        Raises RecordFailed, after the other answers are recorded, if a call has failed and the
        step's policy is to end the run.
        """
        results = self.operator.ask([*asked.values()])
        # The exceptions of failed calls form reference cycles, which only a garbage collection
        # frees. A task pauses automatic collections, so collect here.
        gc.collect(1)
        answers: dict[str, Answered] = {}
        ending: BaseException | None = None
        for (each, row), result in zip(asked.items(), results, strict=True):
            if not isinstance(result, BaseException):
                answers[each] = Answered(result)
                continue
            step = self.spec.plan.step
            if not rejects_record(result):
                ending = run_ending_error(str(step), result, subject_of(row.foreign))
            elif step.on_error == "fail" and not self._has_substitute:
                ending = step_error(str(step), row.foreign, describe_error(result))
            else:
                answers[each] = Answered(error=describe_error(result))
        recorded = self._record(asked, answers)
        if ending is not None:
            raise ending
        return recorded

    @property
    def _has_substitute(self) -> bool:
        """Whether a record continues with another value if its call fails."""
        action = self.spec.plan.action
        return isinstance(action, CallParameters) and action.otherwise is not None

    def _record(
        self, asked: Mapping[str, Row], answers: dict[str, Answered]
    ) -> dict[str, Answered]:
        """Record answers, and return the recorded ones.

        An answer that an earlier attempt has recorded is kept.
        """
        stored, policy = self.stored, self._action.policy
        if policy.keep_ms is None or not answers:
            return answers
        now = stored.before.now
        new: list[RecordedAnswer] = []
        for each, answer in answers.items():
            key = asked[each].key or ""
            new.append(
                RecordedAnswer(
                    self._action.answers, each, key, now, stored.batch, answer.value, answer.error
                )
            )
        forget = {self._action.answers: now - policy.keep_ms}
        stored.shard.write_answers(new, stored.epoch, forget=forget)
        return answers | self._recorded([*answers])

    def _recorded(self, ids: Sequence[str]) -> dict[str, Answered]:
        if self._action.policy.keep_ms is None or not ids:
            return {}
        answers = self.stored.shard.read_answers(self._action.answers, ids, self.stored.epoch)
        return {answer.id: Answered(answer.value, answer.error) for answer in answers}

    @property
    def _action(self) -> CallParameters | TableLookupParameters:
        action = self.spec.plan.action
        assert isinstance(action, CallParameters | TableLookupParameters)
        return action

    def _id(self, position: Position, row: Row) -> str:
        """Identify a row by its record and by the input of its call.

        So the id stays the same if the batches have other boundaries, or if earlier steps change.
        """
        sequence, origin, _ = position
        place: tuple[str, int, int] | None = None
        # If no record has caused a result, such as a timer's, only its key, value and time identify
        # it.
        if has_origin(sequence):
            source, partition = partition_of(origin)
            place = self.topics.get(source, ""), partition, offset_of(origin)
        question = msgspec.msgpack.encode(
            (place, row.key, row.foreign, row.value, row.time, row.window)
        )
        return hashlib.blake2b(question, digest_size=16).hexdigest()
