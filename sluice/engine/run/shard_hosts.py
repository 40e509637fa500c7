"""Keeps a run from a host that does not have the SQLite files of the shards.

On such a host, all shards would seem to be lost, and the state would be computed from the topics
again. With several Airflow workers, this could happen each time that another Airflow worker gets
the run.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from sluice.errors import SettingsError
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationRef
from sluice.state.shard.addresses import file_of, is_file, is_remote


def require_host_of_shards(
    ledger: Ledger, ledger_url: str, ref: GenerationRef, addresses: Sequence[str]
) -> None:
    """Raise SettingsError if the shards at these addresses are files of another host.

    Call this before the lease is taken, because the lease's row names the host of the last run.
    """
    # If the ledger is a file, too, all runs were on one host, although its name may have changed.
    if is_file(ledger_url) or ledger.snapshots.last_batch(ref) is None:
        return
    last = ledger.leases.get(ref)
    own = socket.gethostname()
    if last is None or last.host == own:
        return
    absent = _absent_files(addresses)
    # If this host has the files, it shares a disk with the host of the last run, or has a new name.
    # If only some files are absent, they are lost.
    if not absent or len(absent) < len(addresses):
        return
    name = ref.pipeline
    # Standbys take the places of lost shards.
    if ledger.standbys.of(name):
        return
    raise SettingsError(
        f"The shards of {name} are SQLite files of the host {last.host}, such as {absent[0]}, "
        f"which this host, {own}, does not have.",
        next_step=(
            f"Let Airflow run {name} on {last.host} only, with a queue that only the Airflow "
            "worker of this host has. Or use shards that all hosts reach: set SLUICE_SHARDS to a "
            "PostgreSQL database on all hosts, and compute the state again: sluice rebuild "
            f"{name}. If {last.host} or its files are lost for good, this command computes the "
            f"state again on {own}."
        ),
    )


def _absent_files(addresses: Sequence[str]) -> list[Path]:
    absent: list[Path] = []
    for address in addresses:
        file = None if is_remote(address) else file_of(address)
        if file is not None and not file.exists():
            absent.append(file)
    return absent
