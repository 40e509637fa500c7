"""Programs about things that end by themselves, each with results computed in plain Python."""

from __future__ import annotations

import random

from msgspec import Struct

from sluice import Pipeline
from tests.acceptance.conftest import Piped, Play, last_values, pairs

MINUTE = 60_000
START = 1_700_006_400_000


class Cart(Struct):
    items: int
    at: int


class Bid(Struct):
    auction: str
    amount: int


class Auction(Struct):
    item: str
    ends: int


def test_carts_that_nobody_touches_for_half_an_hour_are_abandoned(play: Play) -> None:
    pipeline = Pipeline("carts")
    carts = pipeline.table("carts", value=Cart, expires_after="30 minutes")
    deleted = carts.changes().filter("kind = 'delete'")
    # A customer who pays deletes the cart, too, but at another time.
    abandoned = deleted.filter("unix_millis(_timestamp) = old.at + 30 * 60000")
    abandoned.map_values("old.items").to("abandoned")
    chance = random.Random(1)
    touched: list[tuple[str, int | None, int]] = []
    at = START
    for _ in range(200):
        at += chance.randrange(1, 8 * MINUTE)
        touched.append((chance.choice("abcdefgh"), chance.choice((None, 1, 2, 3)), at))

    records = [Piped("carts", items and Cart(items, at), key, at) for key, items, at in touched]
    driver = play(pipeline, records)

    expected = []
    for number, (key, items, since) in enumerate(touched):
        next_touch = next(
            (at for other, _, at in touched[number + 1 :] if other == key), touched[-1][2] + 1
        )
        if items and since + 30 * MINUTE <= min(next_touch, touched[-1][2]):
            expected.append((since + 30 * MINUTE, key, items))
    assert pairs(driver, "abandoned") == [(key, items) for _, key, items in sorted(expected)]
    assert len(expected) > 20


def test_an_auction_takes_bids_until_it_ends(play: Play) -> None:
    pipeline = Pipeline("auctions", workers=2)
    auctions = pipeline.table("auctions", value=Auction, expires_at="ends")
    open_auctions = auctions.map_values(lambda auction: auction.item, returns=str)
    open_auctions.group_by("'all'").aggregate(store="open", items="collect_sorted(value)")
    bids = pipeline.table("bids", value=Bid, key="auction")
    auctions.left_join(bids).select(item="left.item", bid="right.amount").to("best_bids")
    records = [
        Piped("auctions", Auction("clock", START + 10 * MINUTE), "1", START),
        Piped("auctions", Auction("chair", START + 20 * MINUTE), "2", START + MINUTE),
        Piped("bids", Bid("1", 5), "1", START + 2 * MINUTE),
        Piped("bids", Bid("2", 9), "2", START + 3 * MINUTE),
        Piped("auctions", Auction("globe", START + 40 * MINUTE), "3", START + 15 * MINUTE),
        Piped("bids", Bid("1", 7), "1", START + 16 * MINUTE),
    ]

    driver = play(pipeline, records)

    assert driver.store("open") == {"all": {"items": ["chair", "globe"]}}
    assert last_values(driver, "best_bids") == {
        "1": None,
        "2": {"item": "chair", "bid": 9},
        "3": {"item": "globe", "bid": None},
    }
