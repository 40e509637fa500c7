"""A changed pipeline is refused, and the error says if the state is that of another file."""

from __future__ import annotations

import pytest

from sluice.engine.run.compatibility import CompatibilityError, require_compatible
from sluice.state.model import GenerationInfo


def registered(topic: str, file: str) -> GenerationInfo:
    return GenerationInfo(
        pipeline="orders",
        generation=1,
        workers=(),
        stores=(),
        topics=(topic,),
        file=file,
    )


def refusal(before: GenerationInfo, now: GenerationInfo) -> CompatibilityError:
    with pytest.raises(
        CompatibilityError,
        match="orders has changed since its state was computed",
    ) as refused:
        require_compatible(before, now, lambda: False)
    return refused.value


def test_a_changed_copy_is_told_whose_state_it_would_change() -> None:
    refused = refusal(
        registered("orders", "/srv/orders.py"),
        registered("orders_v2", "/home/ada/orders.py"),
    )
    said = "The state was computed by /srv/orders.py, and this run is of /home/ada/orders.py."
    assert said in refused.detail
    assert refused.next_step.endswith("If this file is a copy, give its pipeline another name.")


@pytest.mark.parametrize("file", ["/srv/orders.py", ""])
def test_the_changed_file_itself_is_not_taken_for_a_copy(file: str) -> None:
    refused = refusal(registered("orders", "/srv/orders.py"), registered("orders_v2", file))
    assert "copy" not in str(refused)


def test_an_unchanged_copy_may_run() -> None:
    require_compatible(
        registered("orders", "/srv/orders.py"),
        registered("orders", "/tmp/orders.py"),
        lambda: False,
    )
