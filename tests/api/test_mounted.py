"""The plugin's effect on the process that loads it."""

from __future__ import annotations

import gc

from sluice.api.mounted import Mounted


def test_the_first_request_freezes_loaded_objects() -> None:
    gc.unfreeze()
    mounted = Mounted("custom_routes_app")
    assert gc.get_freeze_count() == 0, "loading the plugin must not freeze objects"
    try:
        assert mounted.app is mounted.app
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
