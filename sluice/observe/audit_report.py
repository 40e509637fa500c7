"""Prints audits for `sluice audit`: what became of records, and whether the shards are intact."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluice.errors import DamagedState, NotFound, StateError
from sluice.state.ledger.audits import Audit, SourceAudit, total
from sluice.state.ledger.generations import unknown_pipeline
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import GenerationInfo, GenerationRef, WorkerInfo
from sluice.state.remote.opening import open_shard
from sluice.state.shard.checksums import NO_CHECKSUM
from sluice.state.shard.shard import Shard

_COLUMNS = (
    "topic",
    "partition",
    "offsets",
    "read",
    "applied",
    "filtered",
    "late",
    "dropped",
    "dead letters",
    "",
)
_TEXT_COLUMNS = ("topic", "dropped", "dead letters", "")


def report(ledger_url: str, pipeline: str, run: str, out: Console, *, verify: bool = False) -> bool:
    """Print the audits of a run or a snapshot, or of all runs if `run` is empty.

    Returns True if every audit balances and no shard is damaged. Raises NotFound for an unknown
    pipeline or run.
    """
    with Ledger.open(ledger_url) as ledger:
        info = ledger.generations.current(pipeline)
        if info is None:
            raise unknown_pipeline(pipeline)
        for note in ledger.notes.all(pipeline):
            out.print(f"{note.noted_at} {note.run}".strip(), note.text, markup=False)
        audits = _chosen(ledger, info, run)
        if not audits:
            raise NotFound(
                f"There is no audit of {run or 'any run'} of {pipeline!r}, or it has been deleted.",
                next_step=f"List the audits that exist: sluice audit {pipeline}.",
            )
        balances = _print(audits, out)
        damaged = verify and _verify_shards(ledger, info, audits[-1], out)
    return balances and not damaged


def _chosen(ledger: Ledger, info: GenerationInfo, run: str) -> list[Audit]:
    audits = ledger.audits.all(info.ref)
    return [audit for audit in audits if run in _names(audit)]


def _names(audit: Audit) -> tuple[str, ...]:
    """Return the texts that select an audit. An empty text selects all audits."""
    # The ledger stores a run as DAG/RUN/TASK, and users may write RUN alone.
    middle = audit.run.split("/")[1:2]
    return ("", f"{audit.generation}.{audit.batch}", audit.run, *middle)


def _print(audits: list[Audit], out: Console) -> bool:
    """Print the sums of audits, and return whether they balance."""
    oldest, newest = audits[0], audits[-1]
    begin, end = f"{oldest.generation}.{oldest.batch}", f"{newest.generation}.{newest.batch}"
    table = Table(
        title=f"{oldest.pipeline}, snapshots {begin} to {end}",
        title_justify="left",
        caption=_caption(audits),
        caption_justify="left",
    )
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _TEXT_COLUMNS else "right")
    for source in total(audits):
        # A reason may contain brackets, which are markup in a plain text.
        table.add_row(*map(Text, _row(source)))
    out.print(table)
    for source in total(audits):
        for name, number in sorted(source.passed_over.items()):
            reason, _, store = name.partition("/")
            partition = f"{source.topic} partition {source.partition}"
            out.print(f"skipped by {store}, {reason}: {number:,} of {partition}", markup=False)
    balances = True
    for audit in audits:
        for mistake in audit.wrong:
            balances = False
            out.print(f"✗ {mistake}", markup=False)
    if balances:
        out.print("✓ Every record read is accounted for.")
    else:
        out.print("✗ The audit does not balance.")
    return balances


def _row(source: SourceAudit) -> tuple[str, ...]:
    return (
        source.topic,
        str(source.partition),
        f"{source.start:,} to {source.end:,}",
        f"{source.read:,}",
        f"{source.applied:,}",
        f"{source.filtered:,}",
        f"{source.late:,}",
        _reasons(source.dropped),
        _reasons(source.dead_letters),
        "✗" if source.wrong else "✓",
    )


def _reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {number:,}" for reason, number in sorted(counts.items()))


def _caption(audits: list[Audit]) -> str:
    written: dict[str, int] = {}
    for audit in audits:
        for topic, number in audit.outputs.items():
            written[topic] = written.get(topic, 0) + number
    lines: list[str] = []
    for topic, number in sorted(written.items()):
        lines.append(f"written to {topic}: {number:,}")
    checksums, states = audits[-1].checksums, audits[-1].states
    for worker in sorted(checksums, key=int):
        line = f"checksums of worker {worker}: state rows {checksums[worker]}"
        if states.get(worker, NO_CHECKSUM) != NO_CHECKSUM:
            line += f", operator states {states[worker]}"
        lines.append(line)
    return "\n".join(lines)


def _verify_shards(ledger: Ledger, info: GenerationInfo, newest: Audit, out: Console) -> bool:
    """Verify every shard and standby, and quarantine damaged shards, so that no query reads them.

    Returns True if a shard or a standby is damaged or cannot be read.
    """
    damaged = False
    before = ledger.quarantine.inspect(info.ref)
    # A worker may have moved since the ledger was first read, so the addresses of the shards are
    # read again. If a worker moves from now on, `conclude` detects the move.
    info = ledger.generations.get(info.ref) or info
    for worker in info.workers:
        try:
            with open_shard(worker.location) as shard:
                shard.verify_rows(newest.batch, newest.published_checksums(worker.number))
                _verify_states(ledger, info.ref, shard, worker.number)
            ledger.quarantine.conclude(before, worker.number)
            out.print(
                f"✓ worker {worker.number}: all state rows and operator states match their "
                "checksums"
            )
        except StateError as error:
            damaged = True
            # An unreachable shard may be intact, so only shards with detected damage are
            # quarantined.
            if isinstance(error, DamagedState):
                ledger.quarantine.conclude(before, worker.number, error.detail)
            out.print(f"✗ worker {worker.number}: {error.detail}", markup=False)
        damaged |= _is_standby_damaged(ledger, info, worker, out)
    return damaged


def _is_standby_damaged(
    ledger: Ledger,
    info: GenerationInfo,
    worker: WorkerInfo,
    out: Console,
) -> bool:
    """Verify a worker's standby.

    Returns True if it is damaged or cannot be read. A refresh replaces a damaged copy.
    """
    standby = worker.standby
    if standby is None or standby.batch < 0:
        return False
    published = None
    for audit in ledger.audits.all(info.ref):
        if audit.batch == standby.batch:
            published = audit.published_checksums(worker.number)
    copy = f"worker {worker.number}'s standby, at snapshot {info.generation}.{standby.batch}"
    try:
        with open_shard(standby.server) as shard:
            shard.verify_rows(standby.batch, published)
            shard.verify_states(standby.batch, published)
    except StateError as error:
        out.print(f"✗ {copy}: {error.detail}", markup=False)
        return True
    out.print(f"✓ {copy}: all state rows and operator states match their checksums")
    return False


def _verify_states(ledger: Ledger, ref: GenerationRef, shard: Shard, worker: int) -> None:
    """Verify the operator states, which are kept for the newest snapshot only."""
    newest = ledger.audits.newest(ref)
    while newest is not None:
        try:
            return shard.verify_states(newest.batch, newest.published_checksums(worker))
        except DamagedState:
            # If a run has published a newer snapshot meanwhile, the operator states of the older
            # snapshot are gone.
            before, newest = newest, ledger.audits.newest(ref)
            if newest is None or newest.batch == before.batch:
                raise
    return None
