"""Commands that change where workers are: paused in their middle and resumed later, they change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.commands.cli import app
from sluice.commands.console import wide
from sluice.engine.run.driver_lease import current_lease, this_process
from sluice.errors import DamagedState, Refused
from sluice.observe.audit_report import report
from sluice.operations.moves import move
from sluice.state.ledger.placement import Placement, Placements
from sluice.state.ledger.quarantine import Quarantine
from sluice.state.ledger.standbys import Standbys
from sluice.state.remote.opening import open_shard
from sluice.state.remote.remote_shard import RemoteShard
from sluice.state.remote.standby_copies import promote_standby, refresh_standbys
from sluice.values.key_owners import owner
from tests.api.states import KINDS, totals
from tests.servers.conftest import LOCATIONS
from tests.servers.hosts import Host
from tests.support.fences import content, paused_before
from tests.support.states import States

WORKER = 1


@pytest.fixture
def commands(hosts: list[Host], states: States, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("SLUICE_LEDGER", str(states.ledger.engine.url))
    return Commands(hosts, states)


class Commands:
    """Commands for worker 1, which is at the second host."""

    def __init__(self, hosts: list[Host], states: States) -> None:
        self.hosts, self.states, self.ledger = hosts, states, states.ledger
        self.published = 1

    def place(self, host: int) -> Placement:
        return Placement("orders", WORKER, "127.0.0.1", self.hosts[host].port)

    def move(self, host: int) -> None:
        move(self.ledger, self.place(host))

    def publish(self) -> None:
        self.published += 1
        self.states.publish(totals("general", dict.fromkeys(LOCATIONS, (self.published, "1.00"))))

    def add_standby(self, host: int = 2) -> None:
        self.ledger.standbys.add(self.place(host))
        self.refresh()

    def refresh(self) -> None:
        with current_lease(self.ledger, "orders", this_process("")) as lease:
            for done in refresh_standbys(self.ledger, lease.ref, lease.epoch):
                if error := getattr(done, "error", None):
                    raise error

    def promote(self) -> None:
        with current_lease(self.ledger, "orders", this_process("")) as lease:
            promote_standby(self.ledger, lease.ref, WORKER, lease.epoch, why="A test.")

    def remove_standby(self) -> None:
        result = CliRunner().invoke(
            app, ["standby", "remove", "orders", str(WORKER)], catch_exceptions=False
        )
        if result.exit_code:
            raise Refused(result.output)

    def audit(self) -> None:
        report(str(self.ledger.engine.url), "orders", "", wide.console, verify=True)

    def require_intact(self) -> None:
        """A run can write to all shards where the ledger places them, and they have all published values then."""
        self.publish()
        audit = self.ledger.audits.newest(self.states.ref)
        assert audit is not None
        for worker in self.ledger.generations.workers("orders"):
            with open_shard(worker.location) as shard:
                shard.verify_rows(audit.batch, audit.published_checksums(worker.number))
                rows = shard.scan(KINDS.index("general"), audit.batch, limit=99)
            assert {row.key for row in rows} == {
                key for key in LOCATIONS if owner(key, 4) == worker.number
            }
            assert {json.loads(row.value or "")[0] for row in rows} == {self.published}


def away(commands: Commands) -> None:
    commands.move(0)
    commands.publish()


def away_and_back(commands: Commands) -> None:
    away(commands)
    commands.move(1)
    commands.publish()


def another_begins(commands: Commands) -> None:
    """Another move begins, and is killed before it does anything else."""
    commands.ledger.placements.begin_move(commands.place(0))


@pytest.mark.fault(
    "F43", "sluice move, paused at each step while the worker moves elsewhere, and back"
)
@pytest.mark.parametrize("meanwhile", [away, away_and_back, another_begins])
@pytest.mark.parametrize(
    ("owner", "step"),
    [(RemoteShard, "absorb_rows"), (RemoteShard, "journal"), (Placements, "finish_move")],
)
def test_a_paused_move_changes_nothing(
    commands: Commands, owner: type, step: str, meanwhile: Callable[[Commands], None]
) -> None:
    commands.publish()
    seen: list[Any] = []

    def happen() -> None:
        meanwhile(commands)
        seen.append(content(commands.ledger))

    with (
        paused_before(owner, step, happen),
        pytest.raises(
            Refused, match=r"or began to move it|moved away|already has a shard here|in use"
        ),
    ):
        commands.move(2)
    assert content(commands.ledger) == seen[0]
    if meanwhile is another_begins:
        commands.move(1)  # the worker stays where it is, as the error advises
    commands.require_intact()
    commands.move(2)
    commands.require_intact()


def test_a_move_is_refused_if_a_generation_appears_whose_shards_it_does_not_copy(
    commands: Commands,
) -> None:
    def register() -> None:
        commands.ledger.generations.register(
            States(commands.states.database, workers=4, generation=2).info(), hidden=True
        )  # a rebuild begins

    with (
        paused_before(Placements, "finish_move", register),
        pytest.raises(Refused, match="A generation of 'orders' was added"),
    ):
        commands.move(2)
    commands.require_intact()


def test_a_shard_with_the_published_state_is_used_where_it_is(commands: Commands) -> None:
    """A ledger that was restored from a backup can name a server with an older shard."""
    older = commands.place(1)
    with open_shard(older.shard(commands.states.ref), to_write=True) as shard:
        away(commands)
        shard.seal(sealed=False)
    commands.ledger.placements.finish_move(commands.ledger.placements.begin_move(older))
    with open_shard(older.shard(commands.states.ref)) as shard, pytest.raises(DamagedState):
        shard.verify_rows(
            1, commands.ledger.audits.all(commands.states.ref)[1].published_checksums(WORKER)
        )
    commands.move(0)
    commands.require_intact()


@pytest.mark.fault("F43", "sluice serve --workers on a host with an older shard")
def test_a_host_with_an_older_shard_gets_no_worker(commands: Commands) -> None:
    with open_shard(commands.place(1).shard(commands.states.ref), to_write=True) as shard:
        away(commands)
        for is_sealed, why in ((True, "has been moved away"), (False, "but .* was published")):
            shard.seal(sealed=is_sealed)
            commands.ledger.placements.clear()
            with pytest.raises(Refused, match=f"its shard is not on this host.*{why}"):
                commands.hosts[1].start(WORKER)


@pytest.mark.fault(
    "F43", "sluice standby refresh, promote and remove, paused while the standby changes"
)
@pytest.mark.parametrize(
    ("owner", "step", "command", "meanwhile"),
    [
        (Standbys, "record_copy", "refresh", ["remove_standby"]),
        (Standbys, "record_copy", "refresh", ["remove_standby", "add_elsewhere"]),
        (Standbys, "promote", "promote", ["remove_standby"]),
        (Standbys, "promote", "promote", ["remove_standby", "add_elsewhere"]),
        (Standbys, "promote", "promote", ["move_elsewhere"]),
        (Standbys, "remove", "remove_standby", ["promote"]),
        (Standbys, "remove", "remove_standby", ["remove_standby", "add_standby"]),
    ],
)
def test_a_paused_command_does_not_change_another_standby(
    commands: Commands, owner: type, step: str, command: str, meanwhile: list[str]
) -> None:
    commands.add_standby()
    if command == "refresh":
        commands.publish()
    others: dict[str, Callable[[], object]] = {
        "add_elsewhere": lambda: commands.ledger.standbys.add(commands.place(0)),
        "move_elsewhere": lambda: commands.move(0),
    }
    seen: list[Any] = []

    def happen() -> None:
        for name in meanwhile:
            others.get(name, getattr(commands, name, None))()  # type: ignore[misc]
        seen.append(content(commands.ledger))

    with (
        paused_before(owner, step, happen),
        pytest.raises(Refused, match=r"removed or replaced|another command moved worker"),
    ):
        getattr(commands, command)()
    after = content(commands.ledger)
    assert after | {"leases": []} == seen[0] | {"leases": []}
    commands.require_intact()
    if commands.ledger.standbys.of("orders"):
        commands.refresh()
        commands.promote()
        commands.require_intact()


@pytest.mark.fault(
    "F43", "sluice audit --verify, paused before it lifts a quarantine, or begins one"
)
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("meanwhile", ["quarantine", "lift and quarantine", "move"])
def test_a_paused_audit_leaves_a_newer_quarantine(
    commands: Commands, damaged: bool, meanwhile: str
) -> None:
    ledger, ref = commands.ledger, commands.states.ref
    if meanwhile == "lift and quarantine":
        ledger.quarantine.add(ref, 0, "Lost.")
    if damaged:
        (file,) = commands.hosts[0].folder.rglob("worker-0.sqlite")
        file.write_bytes(b"no database")

    def happen() -> None:
        if meanwhile == "move":
            ledger.placements.begin_move(
                Placement("orders", 0, "127.0.0.1", commands.hosts[2].port)
            )
        else:
            ledger.quarantine.add(ref, 0, "Lost.")

    with (
        paused_before(Quarantine, "conclude", happen),
        pytest.raises(Refused, match="quarantine is left as it is"),
    ):
        commands.audit()
    assert ledger.quarantine.get(ref) == ({} if meanwhile == "move" else {0: "Lost."})
