"""Which state server has which address.

Each server registers its address in the ledger, because the network alone does not tell servers
apart: every host calls itself 127.0.0.1, for example.
"""

from __future__ import annotations

from sqlalchemy import delete, insert, select

from sluice.errors import Refused
from sluice.state.database import database_errors, transaction
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import SERVERS
from sluice.values.host_ports import address_of


class Servers(LedgerPart):
    """The identities of all state servers."""

    def identity(self, host: str, port: int) -> str:
        """Return the identity of the server with this address; empty if none has registered."""
        rows = self._read(
            select(SERVERS.c.server).where(SERVERS.c.host == host, SERVERS.c.port == port)
        )
        return str(rows[0]["server"]) if rows else ""

    def register(self, host: str, port: int, server: str, *, takes_over: bool) -> None:
        """Give an address to a server.

        Raise Refused if another server has the address, unless this server `takes_over`.
        """
        here = SERVERS.c.host == host, SERVERS.c.port == port
        with (
            database_errors("Registering the state server"),
            transaction(self._engine) as connection,
        ):
            before = connection.execute(select(SERVERS.c.server).where(*here)).scalar()
            if before == server:
                return
            # Two servers may call themselves by the same address, such as 127.0.0.1. If both could
            # register this address, readers would ask the wrong server.
            if before is not None and not takes_over:
                raise Refused(
                    f"Another state server has registered the address {address_of(host, port)}, "
                    "which on every host means that host itself.",
                    next_step="Let each server listen on an address that other hosts can reach: "
                    "--bind and --host. If the other server's shards are gone for good, start "
                    "with --take-over.",
                )
            connection.execute(delete(SERVERS).where(*here))
            connection.execute(insert(SERVERS).values(host=host, port=port, server=server))
