"""The time limit for importing a pipeline's file, on a machine whose processors are busy."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.errors import TopologyError
from sluice.topology.loading.pipeline_import import import_file

COMPUTES = """
import time
while time.process_time() < {until}:
    pass
"""


@pytest.fixture
def busy_processor() -> Iterator[None]:
    """Run this process on a processor that four other processes use, too."""
    before = os.sched_getaffinity(0)
    processor = {min(before)}
    os.sched_setaffinity(0, processor)
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux's figures")
@pytest.mark.usefixtures("busy_processor")
def test_waiting_for_a_processor_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "computes.py"
    file.write_text(COMPUTES.format(until=time.process_time() + 0.6))
    begun = time.monotonic()
    import_file(file, seconds=1.2)
    assert time.monotonic() - begun > 1.2, "the processor was not busy"


@pytest.mark.usefixtures("busy_processor")
def test_a_file_that_computes_for_too_long_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "computes.py"
    file.write_text(COMPUTES.format(until=time.process_time() + 60))
    with pytest.raises(TopologyError, match=r"is still being imported after 0\.5 s"):
        import_file(file, seconds=0.5)
