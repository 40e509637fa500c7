"""`sluice backup` and `sluice restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.commands.activity_notes import note_activity
from sluice.commands.console import errors_as_messages, out
from sluice.settings import settings


def backup(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder for the backup.")],
) -> None:
    """Back up the state of all pipelines: ledger and shards. Runs and queries continue."""
    from sluice.operations.backups.back_up import back_up
    from sluice.state.ledger.ledger import Ledger

    with (
        errors_as_messages(),
        Ledger.open(settings().ledger) as ledger,
        out.status("backing up") as status,
    ):
        new_backup = back_up(ledger, folder, status.update)
        status.stop()
        for generation in new_backup.generations:
            snapshot = f"snapshot {generation.generation}.{generation.batch}"
            note_activity(generation.pipeline, "back up", f"{snapshot} to {folder.absolute()}")
            out.print(f"{generation.pipeline}: {snapshot}", markup=False)
        out.print(f"Backed up to {folder}", markup=False, soft_wrap=True)


def restore(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a backup.", exists=True, file_okay=False)
    ],
) -> None:
    """Restore a backup to the ledger and shards in the settings. Both must be empty."""
    from sluice.operations.backups.restore import restore as restore_backup

    with errors_as_messages(), out.status("restoring") as status:
        restored = restore_backup(folder, settings(), status.update)
        status.stop()
        backup_of = f"the backup of {restored.made_at:%Y-%m-%d %H:%M:%S} UTC"
        for generation in restored.generations:
            snapshot = f"snapshot {generation.generation}.{generation.batch}"
            note_activity(generation.pipeline, "restore", f"{snapshot} from {backup_of}")
            out.print(f"{generation.pipeline}: {snapshot}", markup=False)
        out.print(f"Restored {backup_of}")
