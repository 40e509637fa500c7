"""`sluice standby`: copies of shards at second state servers, for when the first server is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.activity_notes import note_activity
from sluice.commands.command_arguments import PipelineName
from sluice.commands.console import errors_as_messages, out, show
from sluice.commands.worker_arguments import current_generation, place_of
from sluice.errors import SluiceError
from sluice.settings import settings

if TYPE_CHECKING:
    from sluice.state.ledger.ledger import Ledger

app = typer.Typer(
    no_args_is_help=True,
    help="Manage standbys: copies of shards at second state servers, in case the first is lost.",
)

Worker = Annotated[int, typer.Argument(min=0, help="The worker's number.")]


@app.command()
def add(
    pipeline: PipelineName,
    worker: Worker,
    address: Annotated[
        str, typer.Argument(help="HOST:PORT of the standby's state server.", metavar="HOST:PORT")
    ],
    tls: Annotated[bool, typer.Option("--tls", help="The server has a TLS certificate.")] = False,
) -> None:
    """Make a state server the standby of a worker, and copy the worker's shard to it."""
    from sluice.errors import LeaseError, NotFound, Refused
    from sluice.operations.moves import require_server
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.remote.standby_copies import require_copyable

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        place = place_of(pipeline, worker, address, tls)
        workers = current_generation(ledger, pipeline).workers
        if worker >= len(workers):
            raise NotFound(
                f"Pipeline {pipeline!r} has no worker {worker}.",
                next_step=f"Look for the numbers of its workers in: sluice workers {pipeline}.",
            )
        require_copyable(workers[worker])
        require_server(ledger, place, "sqlite")
        ledger.standbys.add(place)
        try:
            _refresh(ledger, pipeline)
        except LeaseError as error:
            # A run in progress holds the lease. The run makes the copy when it has read all
            # records.
            out.print(error.detail, markup=False, soft_wrap=True)
        except Refused:
            # The server cannot make a copy: the worker's shard is in the same folder, for example.
            standby = ledger.standbys.of(pipeline).get(worker)
            if standby is not None and standby.copied_generation is None:
                ledger.standbys.remove(standby)
            raise
        note_activity(pipeline, "add standby", f"of worker {worker} at {address}")
        if ledger.standbys.of(pipeline)[worker].copied_generation is None:
            out.print(
                f"{address} is the standby of worker {worker} of {pipeline}. A run makes the "
                "first copy when it has read all records.",
                soft_wrap=True,
            )


@app.command()
def refresh(pipeline: PipelineName) -> None:
    """Copy the newest snapshot to a pipeline's standbys, and check all of their rows.

    No run may be in progress. A run itself refreshes the standbys when it has read all records.
    """
    from sluice.errors import NotFound
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        current_generation(ledger, pipeline)
        if not ledger.standbys.of(pipeline):
            raise NotFound(
                f"{pipeline!r} has no standbys.",
                next_step=f"Add one: sluice standby add {pipeline} WORKER HOST:PORT",
            )
        _refresh(ledger, pipeline)
        note_activity(pipeline, "refresh standbys")


def _refresh(ledger: Ledger, pipeline: str) -> None:
    from sluice.engine.run.driver_lease import current_lease, this_process
    from sluice.state.remote.standby_copies import FailedRefresh, refresh_standbys

    errors: list[SluiceError] = []
    with out.status("waiting for the lease") as status:
        current_generation(ledger, pipeline)
        with current_lease(ledger, pipeline, this_process("")) as lease:
            for outcome in refresh_standbys(ledger, lease.ref, lease.epoch, progress=status.update):
                if isinstance(outcome, FailedRefresh):
                    errors.append(outcome.error)
                    continue
                snapshot = f"{lease.ref.generation}.{outcome.batch}"
                text = (
                    f"Worker {outcome.worker}'s standby has snapshot {snapshot}; "
                    f"{outcome.copied:,} versions copied"
                )
                if outcome.why_whole:
                    text += f", the whole shard: {outcome.why_whole}"
                out.print(text, markup=False, soft_wrap=True)
    for error in errors[:-1]:
        show(error)
    if errors:
        raise errors[-1]


@app.command()
def promote(
    pipeline: PipelineName,
    worker: Worker,
    stale: Annotated[
        bool,
        typer.Option(
            "--stale",
            help=(
                "Promote the standby even if it lacks the newest snapshot; the next run computes "
                "the state again."
            ),
        ),
    ] = False,
) -> None:
    """Put a worker's standby in the worker's place, because the worker's state server is lost."""
    from sluice.engine.run.driver_lease import current_lease, this_process
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.remote.standby_copies import promote_standby

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        current_generation(ledger, pipeline)
        with current_lease(ledger, pipeline, this_process("")) as lease:
            why = "It was promoted by hand."
            note = promote_standby(
                ledger, lease.ref, worker, lease.epoch, why=why, accept_stale=stale
            )
            note_activity(pipeline, "promote standby", f"of worker {worker}")
            out.print(note, markup=False, soft_wrap=True)


@app.command()
def remove(pipeline: PipelineName, worker: Worker) -> None:
    """Forget a worker's standby, and delete its copy if the standby's state server answers."""
    from sluice.errors import NotFound, SluiceError
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.remote.opening import drop_shard

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        standby = ledger.standbys.of(pipeline).get(worker)
        if standby is None:
            raise NotFound(
                f"Worker {worker} of {pipeline!r} has no standby.",
                next_step=f"Look for the workers with standbys in: sluice workers {pipeline}.",
            )
        # The ledger refuses to forget a standby that has been promoted meanwhile. So change the
        # ledger first: otherwise, the standby's shard, which is now the worker's, would be deleted.
        ledger.standbys.remove(standby)
        note_activity(pipeline, "remove standby", f"of worker {worker} at {standby.host_port}")
        kept = ""
        if standby.copied_generation is not None:
            try:
                drop_shard(standby.shard(standby.copied_generation))
            except SluiceError as error:
                # The standby can be removed even if its server is gone for good.
                kept = f" Its copy was not deleted: {error.detail}"
        out.print(
            f"{standby.host_port} is no longer a standby of worker {worker} of {pipeline}.{kept}",
            soft_wrap=True,
        )
