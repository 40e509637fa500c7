"""On which time a run relies if the clocks of the driver, the broker and the database differ."""

from __future__ import annotations

import time

import pytest

from sluice.engine.run.clocks import Clocks

pytestmark = pytest.mark.unit

HOUR = 3_600_000


class Machine:
    """This machine's clocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.steady = 1_700_000_000.0, 50.0
        monkeypatch.setattr(time, "time", lambda: self.wall)
        monkeypatch.setattr(time, "monotonic", lambda: self.steady)

    def go_on(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    @property
    def now(self) -> int:
        return round(self.wall * 1_000)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("ahead", "agreed", "earliest"),
    [
        ([], 0, 0),
        ([None], 0, 0),
        ([999], 0, 0),  # as exact as the comparison
        ([-999, 999], 0, 0),
        ([HOUR], HOUR, HOUR),  # the driver is ahead of the broker
        ([-HOUR], -HOUR, 0),  # the driver is behind
        ([HOUR, HOUR + 5], HOUR, HOUR + 5),
        ([0, HOUR], 0, HOUR),  # the database is behind the two others
        ([HOUR, 0], 0, HOUR),  # the broker is
        ([-HOUR, 0], 0, 0),
        ([-HOUR, -HOUR], -HOUR, 0),
        ([None, HOUR], HOUR, HOUR),
    ],
)
def test_most_clocks_agree_on_a_time(
    machine: Machine, ahead: list[int | None], agreed: int, earliest: int
) -> None:
    clocks = Clocks({str(number): lambda value=value: value for number, value in enumerate(ahead)})  # type: ignore[misc]
    assert clocks.now() == machine.now - agreed
    assert clocks.earliest() == machine.now - earliest


def test_clocks_are_compared_once_a_minute_and_after_the_machine_s_clock_was_set(
    machine: Machine,
) -> None:
    compared: list[str] = []
    differences = [0]

    def ahead() -> int:
        compared.append("")
        return differences[0]

    clocks = Clocks({"the broker": ahead}, on_difference=compared.append)
    assert [clocks.now(), clocks.earliest()] == [machine.now] * 2
    assert len(compared) == 2
    machine.go_on(59)
    clocks.now()
    assert len(compared) == 2
    right = machine.now
    machine.wall += 3_600
    differences[0] = HOUR
    assert [clocks.now(), clocks.earliest()] == [right] * 2
    assert compared[2:] == ["", "3,600.0 s ahead of that of the broker"]
    machine.go_on(61)
    differences[0] = -2_500
    assert clocks.now() == machine.now + 2_500
    assert compared[4:] == ["", "2.5 s behind that of the broker"]


def test_a_clock_that_runs_normally_was_not_set() -> None:
    compared: list[int] = []
    clocks = Clocks({"the broker": lambda: compared.append(0)})
    for _ in range(20):
        assert abs(clocks.now() - time.time() * 1_000) < 500
    assert compared == [0]
