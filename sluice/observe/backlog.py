"""The number of records that a run has to read, counted before the run starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaException

from sluice.errors import SluiceError
from sluice.kafka.brokers import silent_admin
from sluice.kafka.unread_records import read_lag


def backlog_of_run(
    kafka: Mapping[str, str],
    ledger_url: str,
    pipeline: str,
    topics: Iterable[str],
    *,
    enough: int,
    from_beginning: bool = False,
) -> int:
    """The number of records that a run of a pipeline can read now; 0 if the broker or the ledger cannot be read.

    A run that reads `from_beginning` reads its topics again. If the topics have fewer than `enough`
    records in all, the number of all records is returned, because opening the ledger takes longer
    than reading the offsets.
    """
    admin = silent_admin(kafka)
    try:
        all_records = read_lag(admin, topics, {}).readable
        if from_beginning or all_records < enough:
            return all_records
        from sluice.state.ledger.ledger import Ledger

        with Ledger.open(ledger_url) as ledger:
            positions = ledger.positions(pipeline)
        return read_lag(admin, topics, positions).readable
    except (KafkaException, TimeoutError, SluiceError):
        # The run meets the same error and reports it.
        return 0
