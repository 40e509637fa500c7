"""Side outputs of tasks: counts, stream times, records and changed rows, spooled to files near the checkpoint.

Each batch has its own folder on storage that all executors share. A task writes each file atomically, with a name that
is unique to its part of the input. A retried task replaces its files with the same content, so a batch's folder does
not depend on the number of attempts.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec
import pyarrow as pa
from pyarrow import fs

from sluice.errors import SettingsError

KEPT_BATCHES = 1
"""Number of earlier batches whose folders are kept. A driver that has lost its lease without noticing must not delete
the folder of a batch that the new holder has begun."""

_FACTS = ".facts.json"
_CHANGES = ".changes.arrow"


class Facts(msgspec.Struct):
    """A task's counts of records and its stream times."""

    counts: dict[str, int] = {}
    stream_times: dict[str, int] = {}
    partition: str = ""
    """For a task with rows of one partition: `TOPIC-PARTITION`."""
    last: tuple[int, str] | None = None
    """For a task that reads one partition: the offset and the fingerprint of its last record."""
    by_partition: dict[str, dict[str, int]] = {}
    """For a task with rows of several partitions: `TOPIC-PARTITION` → the counts of that partition."""


@dataclass(frozen=True)
class Written:
    """The result of a task that has written records to a topic itself."""

    counts: Mapping[str, int]
    records: Mapping[str, pa.Table]
    """Records for other topics, such as dead letters, which the driver writes."""


@dataclass(frozen=True)
class SideOutputs:
    """The side outputs of a generation. `root` is a path, or a URI that pyarrow can open."""

    root: str
    direct: Callable[[str, pa.Table], Written | None] | None = None
    """If set, writes a topic's records from the task instead of spooling them; returns None for other topics."""

    def write_facts(self, batch: int, part: str, facts: Facts) -> None:
        self._put(f"{batch}/{part}{_FACTS}", msgspec.json.encode(facts))

    def has_facts(self, batch: int, part: str) -> bool:
        """Whether a part of the batch is complete. Its facts are the last file that a task writes."""
        filesystem, path = self._at(f"{batch}/{part}{_FACTS}")
        return bool(filesystem.get_file_info(path).type == fs.FileType.File)

    def write_records(self, batch: int, topic: str, part: str, records: pa.Table) -> Mapping[str, int]:
        """Spool records for a topic, in order, with columns `key`, `value`, and optionally `headers` and `timestamp`.

        Returns the counts of records that `direct` has written instead.
        """
        if self.direct is not None and (written := self.direct(topic, records)) is not None:
            for other, table in written.records.items():
                self.write_records(batch, other, f"{part}+{_short(topic)}", table)
            return written.counts
        self._put_table(f"{batch}/{part}{_records(topic)}", records)
        return {}

    def write_changes(self, batch: int, worker: int, rows: pa.Table) -> None:
        """Spool the rows that the driver needs from the task that has written a worker's shard."""
        self._put_table(f"{batch}/worker-{worker:05}{_CHANGES}", rows)

    def changes(self, batch: int) -> Iterator[pa.Table]:
        """The rows that `write_changes` has spooled, one table per worker."""
        return self._tables(batch, _CHANGES)

    def facts(self, batch: int) -> Facts:
        """The facts of the batch, summed over its parts."""
        counts: Counter[str] = Counter()
        times: dict[str, int] = {}
        for _, data in self._read(batch, _FACTS):
            facts = msgspec.json.decode(data, type=Facts)
            counts.update(facts.counts)
            times |= facts.stream_times
        return Facts(dict(counts), times)

    def counts_by_partition(self, batch: int) -> dict[tuple[str, int], Counter[str]]:
        """The counts of each topic and partition."""
        totals: dict[tuple[str, int], Counter[str]] = {}
        for _, data in self._read(batch, _FACTS):
            facts = msgspec.json.decode(data, type=Facts)
            by_partition = {facts.partition: facts.counts} if facts.partition else facts.by_partition
            for topic_partition, counts in by_partition.items():
                topic, _, partition = topic_partition.rpartition("-")
                totals.setdefault((topic, int(partition)), Counter()).update(counts)
        return totals

    def last_records(self, batch: int) -> dict[tuple[str, int], tuple[int, str]]:
        """Topic and partition → the offset and the fingerprint of the last record that was read."""
        last: dict[tuple[str, int], tuple[int, str]] = {}
        for _, data in self._read(batch, _FACTS):
            facts = msgspec.json.decode(data, type=Facts)
            if facts.last is not None:
                topic, _, partition = facts.partition.rpartition("-")
                last[topic, int(partition)] = facts.last
        return last

    def records(self, batch: int, topic: str) -> Iterator[pa.Table]:
        """The records for a topic, one table per file, in the order of file names."""
        return self._tables(batch, _records(topic))

    def start(self, batch: int) -> None:
        """Create the batch's folder, and delete the folders of old batches.

        Files of an earlier attempt are deleted too, because that attempt may have read other records.
        """
        filesystem, path = self._at("")
        if filesystem.get_file_info(f"{path}/{batch}").type != fs.FileType.NotFound:
            filesystem.delete_dir(f"{path}/{batch}")
        filesystem.create_dir(f"{path}/{batch}")
        for info in filesystem.get_file_info(fs.FileSelector(path)):
            if info.base_name.isdigit() and int(info.base_name) < batch - KEPT_BATCHES:
                filesystem.delete_dir(info.path)

    def forget_earlier(self) -> None:
        """Delete the folders of earlier holders of the lease, which are numbered by epoch beside this one."""
        filesystem, path = self._at("")
        parent, _, own = path.rpartition("/")
        for info in filesystem.get_file_info(fs.FileSelector(parent, allow_not_found=True)):
            if info.base_name.isdigit() and own.isdigit() and int(info.base_name) < int(own):
                filesystem.delete_dir(info.path)

    def _tables(self, batch: int, suffix: str) -> Iterator[pa.Table]:
        for _, data in self._read(batch, suffix):
            yield pa.ipc.open_file(pa.BufferReader(data)).read_all()

    def _put_table(self, name: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self._put(name, sink.getvalue())

    def _read(self, batch: int, suffix: str) -> Iterator[tuple[str, bytes]]:
        filesystem, path = self._at(str(batch))
        files = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        for info in sorted(files, key=lambda info: info.base_name):
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


def part_name(kind: str, topic: str, partition: int) -> str:
    """The name of the side outputs of one partition's records."""
    return f"{kind}-{_short(topic)}-{partition:05}"


def _records(topic: str) -> str:
    # '@' is not legal in topic names, so the suffix for `orders` does not match a file for `a.orders`. The names of
    # tables' outputs have a ':', which HDFS does not allow, and those of folders have slashes.
    return f"@{_short(quote(topic, safe=''))}.arrow"


_LONGEST = 48


def _short(topic: str) -> str:
    """A topic's name, or the beginning of a long name with a digest: a file's name has at most 255 bytes.

    A file's name may contain three topics, and a topic's name has up to 249 characters.
    """
    if len(topic) <= _LONGEST:
        return topic
    digest = hashlib.sha256(topic.encode()).hexdigest()[:32]
    return f"{topic[: _LONGEST - len(digest) - 1]}~{digest}"  # '~' is not legal in topic names


def open_path(location: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it. Raises SettingsError if pyarrow has no such file system."""
    if "://" in location:
        try:
            filesystem, path = fs.FileSystem.from_uri(location)
        except ValueError:
            raise SettingsError(
                f"Checkpoints cannot be kept at a {location.partition('://')[0]}:// address.",
                next_step="Set SLUICE_CHECKPOINTS to a path that the driver and all executors share. Object stores "
                "such as S3 are not supported.",
            ) from None
        return filesystem, path
    return fs.LocalFileSystem(), str(Path(location).absolute())


def delete_folder(location: str) -> None:
    """Delete a folder, if it exists, and everything in it."""
    filesystem, path = open_path(location)
    if filesystem.get_file_info(path).type != fs.FileType.NotFound:
        filesystem.delete_dir(path)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, which thousands of short-lived values without cycles would trigger often."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
