"""Generated records of all types and three versions are read and written exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.values.registered_schemas import SchemaKind
from tests.support.format_round_trips import RoundTrips

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF", "JSON"])
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.heavy)])
def test_records_of_each_version_go_through_a_round_trip(
    tmp_path: Path, kind: SchemaKind, count: int
) -> None:
    trips = RoundTrips(kind, tmp_path, count)
    assert trips.decoded(trips.records) == trips.expected
    assert trips.decoded(trips.written_again()) == trips.expected
