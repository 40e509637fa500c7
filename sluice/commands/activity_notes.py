"""Records in the ledger who did what to a pipeline from the command line."""

from __future__ import annotations

import getpass
from contextlib import suppress

from sluice.errors import StateError
from sluice.settings import settings


def note_activity(pipeline: str, action: str, detail: str = "") -> None:
    """Record in the ledger an action of the command's user on a pipeline.

    The action has already been done, so this raises no error if the ledger does not answer.
    """
    from sluice.state.ledger.ledger import Ledger

    with suppress(StateError), Ledger.open(settings().ledger) as ledger:
        ledger.activities.add(pipeline, action, user_name(), detail)


def user_name() -> str:
    """Return the user who runs the command, as Airflow or the operating system knows them."""
    if settings().user:
        return settings().user
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user has no name, as in some containers
        return ""
