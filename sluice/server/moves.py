"""Moving a worker to another state server, while queries go on.

The shard is copied while it is in use. Then it is sealed: a run that is under way fails at its next batch, and its next
attempt finds the worker at its new place. What the copy lacks by then is copied, and the ledger names the new place.
The old shard stays as it is, sealed, and is answered for until nobody asks any more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import httpx
import msgspec

from sluice.errors import DamagedState, NotFound, Refused, StateError
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from sluice.state.model import JobInfo, WorkerInfo
from sluice.state.remote import ask_options
from sluice.state.shard.shard import Journal, Shard

PAGE = 20_000
_LOOK_SECONDS = 5.0

Told = Callable[[str], None]


def move(ledger: Ledger, place: Placement, told: Told = lambda _: None) -> int:
    """Move a worker with all its shards to `place`; returns how many versions were copied. May be done again.

    NotFound if the pipeline has no such worker, Refused if what answers there is another server.
    """
    demand_server(place)
    jobs = ledger.jobs.all(place.pipeline)
    if not jobs or place.number >= max(len(job.workers) for job in jobs):
        raise NotFound(f"There is no worker {place.number} of a pipeline {place.pipeline!r}.")
    copied = 0
    with ExitStack() as stack:
        arrived = []
        for job in jobs:
            if (pair := _shards(ledger, job, place)) is not None:
                source, target = (stack.enter_context(shard) for shard in pair)
                copied += _copy(source, target, told) if source is not target else 0
                arrived.append(target)
        ledger.placements.move(place)
        for target in arrived:
            target.seal(sealed=False)
    return copied


def demand_server(place: Placement) -> None:
    """Raise Refused if what answers at a place is not the state server of that place."""
    try:
        with httpx.Client(**ask_options(_LOOK_SECONDS)) as client:
            answer = client.get(place.url)
        said = msgspec.json.decode(answer.content, type=dict[str, str | int])
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        raise StateError(f"No state server answers at {place.host}:{place.port} ({type(error).__name__}).") from None
    if answer.status_code != httpx.codes.OK:
        raise Refused(f"The state server at {place.host}:{place.port} said: {said.get('detail', 'no')}")
    if (said.get("host"), said.get("port")) != place.address:
        itself = f"{said.get('host')}:{said.get('port')}"
        raise Refused(f"The state server at {place.host}:{place.port} calls itself {itself}.")


def _shards(ledger: Ledger, job: JobInfo, place: Placement) -> tuple[Shard, Shard] | None:
    """Where a shard is and where it is to be; twice the same if it is there. None if there is nothing to be moved."""
    worker = next((one for one in job.workers if one.number == place.number), None)
    if worker is None or _is_shared(worker):
        return None
    try:
        source = Shard.open(worker.location, to_write=True)
    except StateError:
        if ledger.snapshots.last_batch(job.ref) is None:
            return None
        raise
    there = place.shard(job.ref)
    if worker.location == there:
        return source, source
    return source, Shard.create(there, anew=True)


def _is_shared(worker: WorkerInfo) -> bool:
    return not worker.location.startswith(("sqlite", "http"))


def _copy(source: Shard, target: Shard, told: Told) -> int:
    before = source.journal()
    copied = _absorb(source, target, 0, told)
    source.seal()
    try:
        # The last batch may have been written again, and others have come.
        target.settle(before.newest, Journal(before.epoch, []))
        copied += _absorb(source, target, before.newest, told)
        journal = source.journal()
        target.settle(journal.newest + 1, journal)
        target.verify_states(journal.newest)
    except DamagedState:
        source.seal(sealed=False)
        raise
    return copied


def _absorb(source: Shard, target: Shard, since: int, told: Told) -> int:
    copied, after, after_state = 0, None, None
    while page := source.versions(since, after, PAGE):
        target.absorb(page)
        last = page[-1]
        after = last.group_id, last.key, last.window_start, last.batch
        copied += len(page)
        told(f"{copied:,} versions copied")
    while states := source.state_versions(since, after_state, PAGE):
        target.absorb_states(states)
        newest = states[-1]
        after_state = newest.operator, newest.shared, newest.key, newest.batch
        copied += len(states)
        told(f"{copied:,} versions copied")
    return copied
