"""What tasks hand to the driver beside the query's rows: counts, stream times, output records, dead letters.

The files of a batch lie in a folder of its own beside the checkpoint, on storage that every executor shares. No batch
needs those of another one: what must last is in shards and ledger. A task
writes its files under names that only its part of the input has, and puts them in place whole: a task that runs again
replaces them with the same content, so a batch's folder is the same however often the batch was tried.
"""

from __future__ import annotations

import contextlib
import gc
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow import fs

from sluice.errors import EngineError

KEPT_BATCHES = 1
"""A driver that has lost its lease may not know it yet: what its successor has begun must stay."""


_FACTS = ".facts.json"
_TIMES = "times.json"


class Facts(msgspec.Struct):
    """What became of the records a task read, and how far its stream times are."""

    counts: dict[str, int] = {}
    stream_times: dict[str, int] = {}
    by_place: dict[str, dict[str, int]] = {}
    """Of a task whose rows are from several partitions: `TOPIC-PARTITION` → its share of the counts."""


@dataclass(frozen=True)
class Written:
    """What became of records that a task wrote to their topic itself."""

    counts: Mapping[str, int]
    records: Mapping[str, pa.Table]
    """For other topics, which the driver writes: dead letters."""


@dataclass(frozen=True)
class SideOutputs:
    """The folder of a job's generation. `root` is a path or a URI that pyarrow can open."""

    root: str
    direct: Callable[[str, pa.Table], Written | None] | None = None
    """Writes records of some topics itself; nothing is handed over of them."""

    def write_facts(self, batch: int, part: str, facts: Facts) -> None:
        """Hand over the facts of one part of the batch's input."""
        self._put(f"{batch}/{part}{_FACTS}", msgspec.json.encode(facts))

    def write_records(self, batch: int, topic: str, part: str, records: pa.Table) -> Mapping[str, int]:
        """Hand over records for a topic: columns `key`, `value`, and `headers` if there are any, in order.

        Returns the counts of those that were written to the topic instead.
        """
        if self.direct is not None and (written := self.direct(topic, records)) is not None:
            for other, table in written.records.items():
                self.write_records(batch, other, f"{part}+{topic}", table)
            return written.counts
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, records.schema) as writer:
            writer.write_table(records)
        self._put(f"{batch}/{part}{_records(topic)}", sink.getvalue())
        return {}

    def facts(self, batch: int) -> Facts:
        """The facts of all parts of the batch."""
        counts: Counter[str] = Counter()
        times: dict[str, int] = {}
        for _, data in self._read(batch, _FACTS):
            one = msgspec.json.decode(data, type=Facts)
            counts.update(one.counts)
            times |= one.stream_times
        return Facts(dict(counts), times)

    def by_source(self, batch: int) -> dict[tuple[str, int], Counter[str]]:
        """The counts of each topic's partitions: parts are named KIND-TOPIC-PARTITION, or `stage-` and a worker."""
        found: dict[tuple[str, int], Counter[str]] = {}
        for name, data in self._read(batch, _FACTS):
            facts = msgspec.json.decode(data, type=Facts)
            kind, _, place = name.removesuffix(_FACTS).partition("-")
            of_places = {place: facts.counts} if kind != "stage" else facts.by_place
            for place, counts in of_places.items():
                topic, _, partition = place.rpartition("-")
                found.setdefault((topic, int(partition)), Counter()).update(counts)
        return found

    def records(self, batch: int, topic: str) -> Iterator[pa.Table]:
        """The records for a topic, part by part in the order of the parts' names."""
        for _, data in self._read(batch, _records(topic)):
            yield pa.ipc.open_file(pa.BufferReader(data)).read_all()

    def times(self, batch: int) -> dict[str, int]:
        """The times that a batch goes on from, as it was started with them.

        Raises EngineError if they are not there: a task that takes them for none would count late records.
        """
        filesystem, path = self._at(f"{batch}/{_TIMES}")
        try:
            with filesystem.open_input_stream(path) as file:
                return msgspec.json.decode(file.read(), type=dict[str, int])
        except (OSError, msgspec.DecodeError) as error:
            raise EngineError(
                f"The stream times that batch {batch} goes on from cannot be read: {path}: {error}.",
                next_step="Run again: every batch is given them anew. All executors must share that folder.",
            ) from None

    def start(self, batch: int, times: Mapping[str, int]) -> None:
        """Make room for a batch, hand its tasks the times that it goes on from, and drop what no batch needs.

        What an earlier try has left goes, too: it may have read further.
        """
        filesystem, path = self._at("")
        if filesystem.get_file_info(f"{path}/{batch}").type != fs.FileType.NotFound:
            filesystem.delete_dir(f"{path}/{batch}")
        self._put(f"{batch}/{_TIMES}", msgspec.json.encode(times))
        for info in filesystem.get_file_info(fs.FileSelector(path)):
            if info.base_name.isdigit() and int(info.base_name) < batch - KEPT_BATCHES:
                filesystem.delete_dir(info.path)

    def _read(self, batch: int, suffix: str) -> Iterator[tuple[str, bytes]]:
        filesystem, path = self._at(str(batch))
        found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        for info in sorted(found, key=lambda one: one.base_name):
            if info.base_name.endswith(suffix) and not info.base_name.startswith("."):
                with filesystem.open_input_stream(info.path) as file:
                    yield info.base_name, file.read()

    def _put(self, name: str, data: bytes | pa.Buffer) -> None:
        filesystem, path = self._at(name)
        folder, _, base = path.rpartition("/")
        hidden = f"{folder}/.{base}.{uuid.uuid4().hex}"
        filesystem.create_dir(folder)
        with filesystem.open_output_stream(hidden) as file:
            file.write(data)
        filesystem.move(hidden, path)

    def _at(self, name: str) -> tuple[fs.FileSystem, str]:
        filesystem, path = open_path(self.root)
        return filesystem, f"{path}/{name}".rstrip("/")


def _records(topic: str) -> str:
    # A sign that no topic has: the records for `a.orders` are none for `orders`.
    return f"@{topic}.arrow"


def open_path(location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it."""
    if "://" in location:
        filesystem, path = fs.FileSystem.from_uri(location)
        return filesystem, path
    return fs.LocalFileSystem(), str(Path(location).absolute())


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Thousands of short-lived values make Python's collector look again and again for cycles that are not there."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
