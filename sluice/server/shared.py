"""State that the processes of a state server share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, MutableSequence, MutableSet, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import cast

from typing_extensions import override

from sluice.server.latencies import FIGURES, no_figures
from sluice.state.model import GenerationRef

ShardId = tuple[GenerationRef, int]


@dataclass(frozen=True)
class Shared:
    """State that the processes of a state server share, such as the set of arriving shards."""

    arriving: MutableSet[ShardId] = field(default_factory=set)
    """The shards that the server is receiving."""
    latencies: Sequence[MutableSequence[float]] = field(default_factory=lambda: [no_figures()])
    """For each process, the histograms of how long its answers take (`Latencies`)."""
    number: int = 0
    """The number of this process."""

    def of_process(self, number: int) -> Shared:
        """Return the object that the process with this number uses."""
        return replace(self, number=number)

    def remove(self) -> None:
        """Remove the files. Do nothing if they have been removed already."""
        if isinstance(self.arriving, SharedShardIds):
            shutil.rmtree(self.arriving.folder, ignore_errors=True)


@contextmanager
def shared_among(processes: int) -> Iterator[Shared]:
    """Yield the state that this process and its further processes share."""
    if processes == 1:
        yield Shared()
        return
    arriving = SharedShardIds(Path(tempfile.mkdtemp(prefix="sluice-serve-")))
    shared = Shared(arriving, [RawArray("d", FIGURES) for _ in range(processes)])
    try:
        yield shared
    finally:
        shared.remove()


class SharedShardIds(MutableSet[ShardId]):
    """A set of shards that several processes share: an empty file for each shard, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @override
    def __contains__(self, shard: object) -> bool:
        return self._file(*cast("ShardId", shard)).exists()

    @override
    def __iter__(self) -> Iterator[ShardId]:
        for name in self._names():
            pipeline, generation, number = name.split(",")
            yield GenerationRef(pipeline, int(generation)), int(number)

    @override
    def __len__(self) -> int:
        return len(self._names())

    @override
    def add(self, shard: ShardId) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._file(*shard).touch()

    @override
    def discard(self, shard: ShardId) -> None:
        self._file(*shard).unlink(missing_ok=True)

    def _names(self) -> list[str]:
        try:
            return [file.name for file in self.folder.iterdir()]
        except FileNotFoundError:
            # Some systems remove folders of temporary files that have not been used for days.
            return []

    def _file(self, ref: GenerationRef, number: int) -> Path:
        return self.folder / f"{ref.pipeline},{ref.generation},{number}"
