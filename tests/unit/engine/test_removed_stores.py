"""The removal of a store is called a removal, with what becomes of its entries."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from sluice.engine.run.compatibility import CompatibilityError, require_compatible
from sluice.engine.run.published_changes import published_changes
from sluice.state.model import GenerationInfo
from tests.support.states import States

pytestmark = pytest.mark.unit


@pytest.fixture
def before(tmp_path: Path) -> GenerationInfo:
    return States(f"sqlite:///{tmp_path}").info()


def without(info: GenerationInfo, *names: str) -> GenerationInfo:
    stores = tuple(store for store in info.stores if store.name not in names)
    return replace(info, stores=stores)


def test_a_removed_store_is_said_to_be_removed_with_what_is_deleted(before: GenerationInfo) -> None:
    with pytest.raises(CompatibilityError) as raised:
        require_compatible(before, without(before, "windows"), lambda: False)
    assert "store windows was removed. Its entries are kept, and can be queried" in str(
        raised.value
    )
    assert "Delete the entries for good" in raised.value.next_step
    assert "sluice rebuild orders --changed-only" in raised.value.next_step
    assert "or undo" not in raised.value.next_step.lower()


def test_several_stores_are_named_together(before: GenerationInfo) -> None:
    with pytest.raises(
        CompatibilityError, match=r"stores revenue and windows were removed\. Their"
    ):
        require_compatible(before, without(before, "windows", "revenue"), lambda: False)


def test_other_changes_are_named_beside_a_removal(before: GenerationInfo) -> None:
    changed = without(before, "windows")
    other = tuple(replace(store, key="other") for store in changed.stores)
    with pytest.raises(CompatibilityError, match="store windows was removed") as raised:
        require_compatible(before, replace(changed, stores=other), lambda: False)
    assert "store totals: key" in str(raised.value)


def test_a_store_that_may_have_been_renamed_can_keep_its_state(before: GenerationInfo) -> None:
    def changed(**difference: str) -> GenerationInfo:
        stores = [
            replace(store, name="totals_by_shop", **difference) if store.name == "totals" else store
            for store in before.stores
        ]
        return replace(before, stores=tuple(stores))

    with pytest.raises(CompatibilityError) as raised:
        require_compatible(before, changed(), lambda: False)
    advice = "sluice rename orders --store totals=totals_by_shop."
    assert raised.value.next_step.endswith(advice)
    with pytest.raises(CompatibilityError) as raised:
        require_compatible(before, changed(value="another type"), lambda: False)
    assert "sluice rename" not in raised.value.next_step


def test_an_interrupted_batch_comes_first(before: GenerationInfo) -> None:
    with pytest.raises(CompatibilityError) as raised:
        require_compatible(before, without(before, "windows"), lambda: True)
    assert "The last run was interrupted" in raised.value.next_step


def test_the_check_says_that_the_entries_are_kept_until_they_are_deleted(
    before: GenerationInfo,
) -> None:
    (change,) = published_changes(before, without(before, "windows"))
    assert str(change) == (
        "store windows was removed. A run stops before it reads a record. Its entries are kept "
        "until you delete them: sluice rebuild orders --changed-only."
    )
