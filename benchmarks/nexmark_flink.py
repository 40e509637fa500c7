"""A query of Nexmark in Flink SQL, as one bounded job: `nexmark_flink.py QUERY`.

The Python of Flink runs this program (`benchmarks/nexmark.py --peer`), so it imports nothing of
Sluice. The job reads the topics from their beginning to their end, and writes its results to the
topic `flink_QUERY` exactly once. The program ends when the last checkpoint is complete, and with it
all transactions are committed.
"""

from __future__ import annotations

import argparse

_BID = (
    "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, extra STRING, "
    "`at` BIGINT"
)
SOURCES = {
    "persons": "id BIGINT, name STRING, city STRING, state STRING, `at` BIGINT",
    "auctions": (
        "id BIGINT, item STRING, initial_bid BIGINT, seller BIGINT, category BIGINT, `at` BIGINT, "
        "expires BIGINT"
    ),
    "bids": _BID,
}
"""Topic → its columns. As in the queries for Sluice, each stream's time is that of its records,
without grace."""

_TEN_SECONDS = "INTERVAL '10' SECOND"
_OF_BIDS = f"TUMBLE(TABLE bids, DESCRIPTOR(event_time), {_TEN_SECONDS})"
_COUNTS = (
    "SELECT auction, count(*) AS bids, window_start, window_end "
    f"FROM TABLE(HOP(TABLE bids, DESCRIPTOR(event_time), INTERVAL '2' SECOND, {_TEN_SECONDS})) "
    "GROUP BY auction, window_start, window_end"
)
_RANKED = "SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {order} DESC) AS place FROM bids"
QUERIES = {
    "q0": (
        _BID,
        "SELECT auction, bidder, price, channel, url, extra, `at` FROM bids",
    ),
    "q1": (
        "auction BIGINT, bidder BIGINT, `at` BIGINT, price DECIMAL(23, 3)",
        "SELECT auction, bidder, `at`, 0.908 * price FROM bids",
    ),
    "q2": (
        "auction BIGINT, price BIGINT",
        "SELECT auction, price FROM bids WHERE mod(auction, 123) = 0",
    ),
    "q3": (
        "id BIGINT, name STRING, city STRING, state STRING",
        "SELECT auctions.id, name, city, state FROM auctions JOIN persons ON seller = persons.id "
        "WHERE category = 10 AND state IN ('OR', 'ID', 'CA')",
    ),
    "q5": (
        "auction BIGINT, bids BIGINT, start_time TIMESTAMP(3)",
        "SELECT counts.auction, counts.bids, counts.window_start "
        f"FROM ({_COUNTS}) AS counts JOIN ("
        f"SELECT max(bids) AS bids, window_start, window_end FROM ({_COUNTS}) "
        "GROUP BY window_start, window_end) AS most "
        "ON counts.window_start = most.window_start "
        "AND counts.window_end = most.window_end AND counts.bids = most.bids",
    ),
    "q7": (
        "auction BIGINT, bidder BIGINT, price BIGINT, `at` BIGINT",
        "SELECT bid.auction, bid.bidder, bid.price, bid.`at` "
        f"FROM (SELECT * FROM TABLE({_OF_BIDS})) AS bid JOIN ("
        f"SELECT max(price) AS price, window_start, window_end FROM TABLE({_OF_BIDS}) "
        "GROUP BY window_start, window_end) AS most "
        "ON bid.window_start = most.window_start AND bid.window_end = most.window_end "
        "AND bid.price = most.price",
    ),
    "q8": (
        "id BIGINT, name STRING, start_time TIMESTAMP(3), auction BIGINT",
        "SELECT person.id, person.name, person.window_start, auction.id "
        "FROM (SELECT * FROM TABLE("
        f"TUMBLE(TABLE persons, DESCRIPTOR(event_time), {_TEN_SECONDS}))) AS person "
        "JOIN (SELECT * FROM TABLE("
        f"TUMBLE(TABLE auctions, DESCRIPTOR(event_time), {_TEN_SECONDS}))) AS auction "
        "ON person.id = auction.seller "
        "AND person.window_start = auction.window_start AND person.window_end = auction.window_end",
    ),
    "q11": (
        "bidder BIGINT, bids BIGINT, start_time TIMESTAMP(3)",
        "SELECT bidder, count(*), window_start FROM TABLE("
        f"SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(event_time), {_TEN_SECONDS})) "
        "GROUP BY bidder, window_start, window_end",
    ),
    "q18": (
        "auction BIGINT, bidder BIGINT, price BIGINT, `at` BIGINT, "
        "PRIMARY KEY (bidder, auction) NOT ENFORCED",
        "SELECT auction, bidder, price, `at` "
        f"FROM ({_RANKED.format(by='bidder, auction', order='event_time')}) WHERE place = 1",
    ),
    "q19": (
        "auction BIGINT, place BIGINT, bidder BIGINT, price BIGINT, "
        "PRIMARY KEY (auction, place) NOT ENFORCED",
        "SELECT auction, place, bidder, price "
        f"FROM ({_RANKED.format(by='auction', order='price')}) WHERE place <= 10",
    ),
    "q20": (
        "auction BIGINT, price BIGINT, item STRING",
        "SELECT auction, price, item FROM bids JOIN auctions ON auction = auctions.id "
        "WHERE category = 10",
    ),
    "q22": (
        "auction BIGINT, dir1 STRING, dir2 STRING, dir3 STRING",
        "SELECT auction, split_index(url, '/', 3), split_index(url, '/', 4), "
        "split_index(url, '/', 5) FROM bids",
    ),
}
"""Query → the columns of its results, and its SQL. Results with a primary key are written as
changes of a table."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("query", choices=QUERIES)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--connector", required=True, help="The jar of the Kafka connector.")
    parser.add_argument("--state", required=True, help="A folder for state and checkpoints.")
    given = parser.parse_args()
    from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in settings(given.connector, given.state).items():
        tables.get_config().set(name, value)
    for topic, columns in SOURCES.items():
        tables.execute_sql(source(topic, columns, given.bootstrap))
    columns, select = QUERIES[given.query]
    tables.execute_sql(sink(f"flink_{given.query}", columns, given.bootstrap))
    tables.execute_sql(f"INSERT INTO results {select}").wait()


def settings(connector: str, state: str) -> dict[str, str]:
    """Return Flink's settings: two threads, as Sluice has two workers, and state on disk.

    Flink commits with a checkpoint, every five seconds.
    """
    return {
        "pipeline.jars": f"file://{connector}",
        "pipeline.object-reuse": "true",
        "parallelism.default": "2",
        "io.tmp.dirs": state,
        "state.backend.type": "rocksdb",
        "execution.checkpointing.interval": "5s",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.dir": f"file://{state}/checkpoints",
        "execution.checkpointing.incremental": "true",
        "taskmanager.memory.managed.size": "512m",
        "table.local-time-zone": "UTC",
        "table.exec.mini-batch.enabled": "true",
        "table.exec.mini-batch.allow-latency": "1s",
        "table.exec.mini-batch.size": "50000",
        # The changes of each result row arrive in order, so Flink need not store the rows to sort
        # the changes.
        "table.exec.sink.upsert-materialize": "NONE",
    }


def source(topic: str, columns: str, bootstrap: str) -> str:
    """Return SQL that declares a topic as a stream, up to its present end."""
    return f"""CREATE TABLE {topic} (
        {columns}, event_time AS TO_TIMESTAMP_LTZ(`at`, 3), WATERMARK FOR event_time AS event_time
    ) WITH (
        'connector' = 'kafka', 'topic' = '{topic}', 'format' = 'json',
        'properties.bootstrap.servers' = '{bootstrap}',
        'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset')"""


def sink(topic: str, columns: str, bootstrap: str) -> str:
    """Return SQL that declares the topic of the results, written in transactions."""
    connector = "'kafka', 'format' = 'json'"
    if "PRIMARY KEY" in columns:
        connector = "'upsert-kafka', 'key.format' = 'json', 'value.format' = 'json'"
    return f"""CREATE TABLE results ({columns}) WITH (
        'connector' = {connector}, 'topic' = '{topic}',
        'properties.bootstrap.servers' = '{bootstrap}',
        'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{topic}',
        'properties.transaction.timeout.ms' = '600000', 'properties.compression.type' = 'lz4',
        'properties.linger.ms' = '50', 'properties.batch.size' = '1000000')"""


if __name__ == "__main__":
    main()
