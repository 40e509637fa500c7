"""Spark's tasks read formats of a registry from a pickle, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.serializers import CloudPickleSerializer

from sluice.engine.batch.side_outputs import SideOutputs
from sluice.engine.publish.encode_registered import RegisteredEncoder
from sluice.engine.read.stream_reader import StreamReader
from sluice.engine.steps import pickling
from sluice.plan import plan
from sluice.registry.http_registry import HttpRegistry
from sluice.registry.memory import MemoryRegistry
from sluice.topology import load_pipeline
from sluice.topology.pulled_schemas import write_file
from sluice.values.registered_schemas import RegisteredSchema, SchemaKind

pytestmark = pytest.mark.unit

PIPELINE = """
from sluice import Avro, Pipeline


def kind(event):
    return type(event.part).__name__


pipeline = Pipeline("events")
events = pipeline.stream("events", value=Avro("events-value"), key="id")
events.map_values(kind, returns=str).group_by_key().count(store="kinds")
"""
SCHEMA = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "string"},
        {
            "name": "part",
            "type": {"type": "record", "name": "Part", "fields": [{"name": "n", "type": "int"}]},
        },
    ],
}
TASK = """
import pickle
import sys
from pathlib import Path

reader, functions, data = pickle.loads(Path(sys.argv[1]).read_bytes())
rows, values, dead_letters = reader.decoders["events"].decode([data])
print(type(values[0]).__name__, values[0].part.n, functions[0].function.value(None, values[0]))
assert type(values[0]) is reader.decoders["events"].source.value_class
assert type(values[0]) is functions[0].takes.value
"""


PROTO = """
syntax = "proto3";
message Event { string id = 1; Part part = 2; }
message Part { int32 n = 1; }
"""
JSON_SCHEMA = {
    "title": "Event",
    "properties": {
        "id": {"type": "string"},
        "part": {"properties": {"n": {"type": "integer"}}},
    },
}


@pytest.mark.parametrize(
    ("serde", "kind", "text"),
    [
        ("Avro", "AVRO", json.dumps(SCHEMA)),
        ("Protobuf", "PROTOBUF", PROTO),
        ("JsonSchema", "JSON", json.dumps(JSON_SCHEMA)),
    ],
)
def test_tasks_make_the_structs_of_a_pulled_schema(
    tmp_path: Path, serde: str, kind: SchemaKind, text: str
) -> None:
    (tmp_path / "events.py").write_text(PIPELINE.replace("Avro", serde))
    schema = RegisteredSchema(id=1, kind=kind, text=text, subject="events-value", version=1)
    write_file(tmp_path, schema)
    job = plan(load_pipeline(tmp_path, "events")).job
    registry = MemoryRegistry()
    encoder = RegisteredEncoder(registry.register("events-value", text, kind), in_header=False)
    value = {"id": "a", "part": {"n": 7}}
    data = encoder(json.dumps(value) if encoder.takes_json else value)
    pickling.register()
    reader = StreamReader.of(job, SideOutputs(), registry=registry)
    pickled = CloudPickleSerializer().dumps((reader, job.functions, data))  # type: ignore[no-untyped-call]
    (tmp_path / "task").write_bytes(pickled)
    command = [sys.executable, "-c", TASK, str(tmp_path / "task")]
    printed = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (printed.stdout, printed.returncode) == ("Event 7 Part\n", 0), printed.stderr


def test_secrets_of_the_registry_are_in_no_plan(tmp_path: Path) -> None:
    (tmp_path / "events.py").write_text(PIPELINE)
    text = json.dumps(SCHEMA)
    write_file(tmp_path, RegisteredSchema(id=1, text=text, subject="events-value", version=1))
    job = plan(load_pipeline(tmp_path, "events")).job
    registry = HttpRegistry({"url": "http://r:8081", "basic.auth.user.info": "me:geheimnis-123"})
    reader = StreamReader.of(job, SideOutputs(), registry=registry)
    assert "geheimnis" not in f"{job!r} {reader!r}"
