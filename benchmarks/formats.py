"""Times the decoding and encoding of orders in each format: `formats.py [--records N] [--runs N]`.

With `--rich`, orders also have a map, a list of numbers, and limits of their values.
Both ways of decoding are timed: to columns, and value by value. The values become the columns that
later steps read, in this process, without Kafka and Spark. The time is the process's CPU time,
without garbage collection, which is also off in tasks. It is the best of several runs, which
alternate between the formats.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import typer
from msgspec import Meta
from rich.console import Console
from rich.table import Table

from sluice import Avro, JsonSchema, Pipeline, Protobuf
from sluice.engine.batch.dead_letters import RejectedOutput
from sluice.engine.publish.encode import encode_records
from sluice.engine.publish.encode_registered import encoder_of
from sluice.engine.read.decode import ValueDecoder
from sluice.plan import plan
from sluice.registry.memory import MemoryRegistry
from sluice.values.registered_schemas import prefix
from spark_jobs.orders import Order


class RichOrder(Order):
    """An order that also has a limited number and text, a list, and a map."""

    points: Annotated[int, Meta(ge=0)]
    coupon: Annotated[str, Meta(max_length=20)] | None
    weights: list[float]
    tags: dict[str, int]


def formats_of(contract: type[Order]) -> dict[str, Any]:
    return {
        "JSON": contract,
        "JSON Schema": JsonSchema(contract),
        "Avro": Avro(contract),
        "Protobuf": Protobuf(contract),
    }


_encode_json = msgspec.json.Encoder(decimal_format="number").encode


def orders(count: int) -> list[dict[str, Any]]:
    """Return sample orders with two lines each."""
    chosen = random.Random(1)
    items = ["Bananas", "Iphone Charger", "Bread", "Coffee"]
    made: list[dict[str, Any]] = []
    for number in range(count):
        lines: list[dict[str, Any]] = []
        for item in chosen.choices(items, k=2):
            amount = Decimal(chosen.randrange(100, 9_999)) / 100
            lines.append({"item": item, "count": chosen.randrange(1, 9), "amount": amount})
        made.append(
            {
                "orderId": 10_000 + number,
                "locationId": f"store_{chosen.randrange(10_000)}",
                "finalAmount": Decimal(chosen.randrange(100, 99_999)) / 100,
                "orderType": chosen.choice(["GENERAL", "RESTAURANT"]),
                "orderLineItems": lines,
                "orderedDateTime": datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=number),
            }
        )
    return made


def add_parts(values: list[dict[str, Any]]) -> None:
    """Add the parts of a RichOrder to each order."""
    chosen = random.Random(2)
    for value in values:
        value["points"] = chosen.randrange(1, 1_000)
        value["coupon"] = chosen.choice([None, "SPRING"])
        value["weights"] = [chosen.randrange(1, 100) / 4 for _ in range(2)]
        value["tags"] = {name: chosen.randrange(9) for name in chosen.sample("abcdef", 2)}


class Format:
    """The orders in one format, with the functions that read and write them."""

    def __init__(self, name: str, serde: Any, values: list[dict[str, Any]]) -> None:
        pipeline = Pipeline("formats")
        read = pipeline.stream("orders", value=serde)
        if name == "JSON":
            read.to("copies")
        else:
            read.to("copies", value=serde)
        self._job = plan(pipeline).job
        self._registry = MemoryRegistry()
        (self._source,) = self._job.streams
        self.decoder = ValueDecoder(self._source, self._registry)
        self.texts = [_encode_json(value) for value in values]
        data = self.texts
        if name != "JSON":
            assert self._source.decode is not None
            of_source = self._source.decode.value
            schema = self._registry.register("orders-value", of_source.schema, of_source.kind)
            self._registry.register("copies-value", of_source.schema, of_source.kind)
            if name != "JSON Schema":
                encode = encoder_of(of_source, "orders", self._registry)
                data = [encode(value) for value in values]
            else:
                data = [prefix(schema.id) + text for text in self.texts]
        self.data = pa.array(data, pa.binary())
        self._sink = self._job.stream_sinks[0]

    def to_columns(self) -> None:
        for run in self.decoder.runs(self.data):
            if run.values is None:
                self.one_by_one()
                return
            for name in self._source.types:
                self.decoder.columns.column(run.values, name)

    def one_by_one(self) -> None:
        _, values, dead_letters = self.decoder.decode(self.data.to_pylist())
        assert not dead_letters
        for name in self._source.types:
            self.decoder.columns.column(values, name)

    def encode(self) -> None:
        texts = pa.array([text.decode() for text in self.texts])
        table = pa.table({"key": pa.nulls(len(texts), pa.string()), "value": texts})
        rejected = RejectedOutput()
        registry = self._registry
        encode_records(
            self._sink, table, rejected, lambda values, topic: encoder_of(values, topic, registry)
        )
        assert not rejected.counts


def best(steps: list[Callable[[], None]], runs: int) -> list[float]:
    """Run the steps in turn, several times. Return the fewest CPU seconds that each has taken."""
    times = [float("inf")] * len(steps)
    gc.disable()
    for _ in range(runs):
        for number, step in enumerate(steps):
            begun = time.process_time()
            step()
            times[number] = min(times[number], time.process_time() - begun)
            gc.collect()
    gc.enable()
    return times


def main(
    records: Annotated[int, typer.Option(help="How many orders.")] = 20_000,
    runs: Annotated[int, typer.Option(help="How often each way is timed.")] = 5,
    rich: Annotated[bool, typer.Option(help="Time orders with parts of more types.")] = False,
) -> None:
    """Time the formats, and print µs per order."""
    values = orders(records)
    if rich:
        add_parts(values)
    formats: dict[str, Format] = {}
    for name, serde in formats_of(RichOrder if rich else Order).items():
        formats[name] = Format(name, serde, values)
    table = Table("format", "bytes", "decode to columns", "decode one by one", "encode")
    columns = best([each.to_columns for each in formats.values()], runs)
    single = best([each.one_by_one for each in formats.values()], runs)
    written = best([each.encode for each in formats.values()], runs)
    for number, (name, each) in enumerate(formats.items()):
        per_record = [1e6 * times[number] / records for times in (columns, single, written)]
        size = each.data.nbytes / records
        table.add_row(name, f"{size:.0f}", *(f"{micros:.2f} µs" for micros in per_record))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
