"""What the plugin does to the process that it is loaded into."""

from __future__ import annotations

import gc

from sluice.api.mounted import Mounted


def test_what_is_there_when_somebody_first_asks_is_left_alone_by_the_collector() -> None:
    gc.unfreeze()
    mounted = Mounted("own_routes_app")
    assert gc.get_freeze_count() == 0, "loading a plugin must cost a process nothing"
    try:
        assert mounted.app is mounted.app
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
