"""Java's own libraries of Avro and Protobuf read what Sluice writes, and write what it reads."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.provision import jars
from sluice.provision.jars import Bundle
from sluice.provision.machine_checks import find_java
from sluice.settings import settings
from sluice.values.proto_descriptors import message_named
from sluice.values.registered_schemas import PREFIX_BYTES, SchemaKind, prefix
from tests.support.format_round_trips import RoundTrips

pytestmark = [pytest.mark.engine, pytest.mark.heavy]

_PEER = Path(__file__).parents[1] / "support" / "FormatsPeer.java"
_FIRST_MESSAGE = b"\0"


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF"])
def test_java_reads_and_writes_the_same_values(tmp_path: Path, kind: SchemaKind) -> None:
    trips = RoundTrips(kind, tmp_path, 10_000)
    begin = PREFIX_BYTES + (len(_FIRST_MESSAGE) if kind == "PROTOBUF" else 0)
    write_records(tmp_path / "records", trips.records, begin)
    write_schemas(tmp_path, trips)
    run_peer(tmp_path, kind)
    assert (tmp_path / "values").read_text().splitlines() == trips.expected

    # In Avro, Java has written with the contract's schema; a message is written as it was read.
    rewritten: list[bytes] = []
    for number, data in enumerate(read_records(tmp_path / "rewritten")):
        if kind == "AVRO":
            rewritten.append(prefix(trips.schemas[1].id) + data)
        else:
            rewritten.append(prefix(trips.schemas[number % 3].id) + _FIRST_MESSAGE + data)
    assert trips.decoded(rewritten) == trips.expected


def write_records(path: Path, records: Sequence[bytes], begin: int) -> None:
    with path.open("wb") as file:
        for number, record in enumerate(records):
            data = record[begin:]
            file.write(struct.pack(">ii", number % 3, len(data)) + data)


def read_records(path: Path) -> Iterator[bytes]:
    data, at = path.read_bytes(), 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        yield data[at : at + size]
        at += size


def write_schemas(folder: Path, trips: RoundTrips) -> None:
    for number, schema in enumerate(trips.schemas):
        if trips.kind == "AVRO":
            data, name = schema.text.encode(), f"{number}.avsc"
        else:
            message = message_named(schema.text, (), "")
            data, name = descriptor_set(message.DESCRIPTOR.file), f"{number}.desc"
        (folder / name).write_bytes(data)
        if number == 1:
            (folder / "reader").write_bytes(data)


def descriptor_set(file: Any) -> bytes:
    """Return a schema of Protobuf with all files that it imports, each before those that need it."""
    from google.protobuf import descriptor_pb2

    made = descriptor_pb2.FileDescriptorSet()
    names: set[str] = set()

    def add(each: Any) -> None:
        for dependency in each.dependencies:
            add(dependency)
        if each.name not in names:
            names.add(each.name)
            each.CopyToProto(made.file.add())

    add(file)
    data: bytes = made.SerializeToString()
    return data


def run_peer(folder: Path, kind: SchemaKind) -> None:
    java = find_java().path
    root = settings().jars
    jars.provide(root, java, bundles=[Bundle.PROTOBUF])
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    libraries = [Path(spark.origin).parent / "jars", jars.folder(Bundle.PROTOBUF, root)]
    classpath = os.pathsep.join([f"{library}/*" for library in libraries])
    command = [str(java), "-cp", classpath, str(_PEER), kind, str(folder)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
