"""The queries of Nexmark as pipelines, whose results are in the store or topic `results`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluice import WALL_CLOCK, Pipeline, Stream, Table, epoch_ms, hopping, session, tumbling, within
from tests.acceptance.nexmark.events import Auction, Bid, Person

_TEN_SECONDS = tumbling("10 seconds")
_FIRST_OF_HIGHEST = "CAST(price AS DECIMAL(20, 0)) * 10000000000000 - at"
"""Orders bids by their price, and bids of the same price from the last to the first."""
_END_AND_PRICE = "CAST(expires AS DECIMAL(20, 0)) * 10000000000000 + price"
"""Orders auctions by their end, and auctions with the same end by their price; the last digits are the price."""
_RANKS = {
    "rank1": "price < 10000",
    "rank2": "price BETWEEN 10000 AND 999999",
    "rank3": "price >= 1000000",
}


def _query(name: str, **keys: str) -> tuple[Pipeline, Callable[[str], Stream[Any]]]:
    """A pipeline, and a function that reads one of its topics as a stream with keys of `keys[topic]`."""
    pipeline = Pipeline(name, workers=2)
    types: dict[str, type] = {"persons": Person, "auctions": Auction, "bids": Bid}

    def stream(topic: str) -> Stream[Any]:
        return pipeline.stream(
            topic, value=types[topic], key=keys.get(topic), event_time=epoch_ms("at")
        )

    return pipeline, stream


def q0(name: str) -> Pipeline:
    """All bids, unchanged: the cost of reading and writing."""
    pipeline, stream = _query(name)
    stream("bids").to("results")
    return pipeline


def q1(name: str) -> Pipeline:
    """The prices of bids in another currency."""
    pipeline, stream = _query(name)
    stream("bids").select("auction", "bidder", "at", price="0.908 * price").to("results")
    return pipeline


def q2(name: str) -> Pipeline:
    """Bids for some auctions."""
    pipeline, stream = _query(name)
    stream("bids").filter("auction % 123 = 0").select("auction", "price").to("results")
    return pipeline


def q3(name: str) -> Pipeline:
    """Who sells in category 10 in three states; a person may come after the auction."""
    pipeline, _ = _query(name)
    persons = pipeline.table("persons", value=Person, key="id").filter(
        "state IN ('OR', 'ID', 'CA')"
    )
    auctions = pipeline.table("auctions", value=Auction, key="id").filter("category = 10")
    joined = auctions.join(persons, on="seller")
    joined.select(name="right.name", city="right.city", state="right.state", id="left.id").to(
        "results"
    )
    return pipeline


def _winning(pipeline: Pipeline, stream: Callable[[str], Stream[Any]]) -> Table[Any]:
    """The best price of each auction while it was open, with the auction's category and seller."""
    auctions = pipeline.table("auctions", value=Auction, key="id")
    bids = stream("bids").join(auctions).filter("left.at BETWEEN right.at AND right.expires")
    offers = bids.select(
        category="right.category", seller="right.seller", price="left.price", bidder="left.bidder", at="left.at",
        expires="right.expires",
    )  # fmt: skip
    return offers.group_by_key().aggregate(
        store="winning", price="max(price)", bidder=f"max_by(bidder, {_FIRST_OF_HIGHEST})",
        category="max(category)", seller="max(seller)", expires="max(expires)",
    )  # fmt: skip


def q4(name: str) -> Pipeline:
    """The average winning price of each category."""
    pipeline, stream = _query(name, bids="auction")
    _winning(pipeline, stream).group_by("category").aggregate(store="results", price="avg(price)")
    return pipeline


def q5(name: str) -> Pipeline:
    """The auction with the most bids in windows of ten seconds, every two seconds, once a window has closed."""
    pipeline, stream = _query(name)
    windows = hopping("10 seconds", advance="2 seconds")
    counts = (
        stream("bids")
        .group_by("auction")
        .windowed_by(windows, emit="window_close")
        .count(store="bids_of_auction")
    )
    of_window = counts.group_by("unix_millis(_window_start)")
    of_window.aggregate(store="results", bids="max(value)", auction="max_by(_key, value)")
    return pipeline


def q6(name: str) -> Pipeline:
    """The average winning price of each seller's last ten auctions."""
    pipeline, stream = _query(name, bids="auction")
    of_seller = _winning(pipeline, stream).group_by("seller")
    last = of_seller.aggregate(store="last_of_seller", prices=f"top({_END_AND_PRICE}, 10)")
    total = "aggregate(prices, 0L, (sum, each) -> sum + CAST(each % 10000000000000 AS BIGINT))"
    last.select(price=f"{total} / size(prices)").to("results")
    return pipeline


def q7(name: str) -> Pipeline:
    """The highest bid of each ten seconds."""
    pipeline, stream = _query(name)
    windows = stream("bids").group_by("'all'").windowed_by(_TEN_SECONDS)
    first = {what: f"max_by({what}, {_FIRST_OF_HIGHEST})" for what in ("auction", "bidder")}
    windows.aggregate({"price": "max(price)"} | first, store="results")
    return pipeline


def q8(name: str) -> Pipeline:
    """Persons who open an auction in the same ten seconds in which they registered."""
    pipeline, stream = _query(name, persons="id", auctions="seller")
    joined = stream("persons").join(stream("auctions"), within("10 seconds"))
    same = joined.filter("left.at div 10000 = right.at div 10000")
    same.select(
        id="left.id", name="left.name", start="(left.at div 10000) * 10000", auction="right.id"
    ).to("results")
    return pipeline


def q9(name: str) -> Pipeline:
    """The winning bid of each auction."""
    pipeline, stream = _query(name, bids="auction")
    _winning(pipeline, stream).select("price", "bidder").to("results")
    return pipeline


def q10(name: str) -> Pipeline:
    """Bids with the date and hour of their partition in a file system."""
    pipeline, stream = _query(name)
    day, hour = "date_format(_timestamp, 'yyyy-MM-dd')", "date_format(_timestamp, 'HH')"
    stream("bids").select("auction", "bidder", "price", day=day, hour=hour).to("results")
    return pipeline


def q11(name: str) -> Pipeline:
    """How many bids a person makes without a pause of ten seconds."""
    pipeline, stream = _query(name)
    stream("bids").group_by("bidder").windowed_by(session("10 seconds")).count(store="results")
    return pipeline


def q12(name: str) -> Pipeline:
    """How many bids a person makes in ten seconds of the time of processing."""
    pipeline = Pipeline(name, workers=2)
    bids = pipeline.stream("bids", value=Bid, event_time=WALL_CLOCK)
    bids.group_by("bidder").windowed_by(_TEN_SECONDS).count(store="results")
    return pipeline


def q13(name: str) -> Pipeline:
    """Bids with a value of a small, fixed table."""
    pipeline, stream = _query(name)
    side = pipeline.global_table("side_input", value=str)
    joined = stream("bids").join(side, on="auction % 10")
    joined.select(auction="left.auction", price="left.price", value="right").to("results")
    return pipeline


def q14(name: str) -> Pipeline:
    """Dear bids with the kind of their time of day, and how often their text has a c."""
    pipeline, stream = _query(name)
    hour = "hour(_timestamp)"
    is_night = f"{hour} <= 6 OR {hour} >= 20"
    kind = f"CASE WHEN {hour} BETWEEN 8 AND 18 THEN 'day' WHEN {is_night} THEN 'night' ELSE 'other' END"
    bids = stream("bids").filter("0.908 * price > 1000000 AND 0.908 * price < 50000000")
    bids.select("auction", kind=kind, c="length(extra) - length(replace(extra, 'c', ''))").to(
        "results"
    )
    return pipeline


def _statistics() -> dict[str, str]:
    columns = {"bids": "count(*)"} | {
        f"{rank}_bids": f"count_if({where})" for rank, where in _RANKS.items()
    }
    for what in ("bidder", "auction"):
        columns[f"{what}s"] = f"count(DISTINCT {what})"
        for rank, where in _RANKS.items():
            columns[f"{rank}_{what}s"] = f"count(DISTINCT IF({where}, {what}, NULL))"
    return columns


def q15(name: str) -> Pipeline:
    """Statistics of each day's bids."""
    pipeline, stream = _query(name)
    days = stream("bids").group_by("date_format(_timestamp, 'yyyy-MM-dd')")
    days.aggregate(_statistics(), store="results")
    return pipeline


def q16(name: str) -> Pipeline:
    """Statistics of each channel's and day's bids."""
    pipeline, stream = _query(name)
    days = stream("bids").group_by("concat(channel, ' ', date_format(_timestamp, 'yyyy-MM-dd'))")
    days.aggregate(_statistics(), store="results")
    return pipeline


def q17(name: str) -> Pipeline:
    """Statistics of each auction's and day's bids."""
    pipeline, stream = _query(name)
    days = stream("bids").group_by(
        "concat(CAST(auction AS STRING), ' ', date_format(_timestamp, 'yyyy-MM-dd'))"
    )
    counts = {"bids": "count(*)"} | {
        f"{rank}_bids": f"count_if({where})" for rank, where in _RANKS.items()
    }
    prices = {
        "least": "min(price)",
        "most": "max(price)",
        "mean": "avg(price)",
        "total": "sum(price)",
    }
    days.aggregate(counts | prices, store="results")
    return pipeline


def q18(name: str) -> Pipeline:
    """The last bid of each bidder for each auction."""
    pipeline, stream = _query(name)
    stream("bids").select_key(
        "concat(CAST(bidder AS STRING), ' ', CAST(auction AS STRING))"
    ).to_table(store="results")
    return pipeline


def q19(name: str) -> Pipeline:
    """The ten highest bids of each auction."""
    pipeline, stream = _query(name)
    stream("bids").group_by("auction").aggregate(store="results", prices="top(price, 10)")
    return pipeline


def q20(name: str) -> Pipeline:
    """Bids with their auction, for one category."""
    pipeline, stream = _query(name, bids="auction")
    auctions = pipeline.table("auctions", value=Auction, key="id").filter("category = 10")
    stream("bids").join(auctions).select(
        auction="left.auction", price="left.price", item="right.item"
    ).to("results")
    return pipeline


def q21(name: str) -> Pipeline:
    """Bids with the number of their channel."""
    pipeline, stream = _query(name)
    known = "WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'"
    number = f"CASE lower(channel) {known} ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END"
    stream("bids").select("auction", "channel", channel_id=number).filter(
        "channel_id IS NOT NULL"
    ).to("results")
    return pipeline


def q22(name: str) -> Pipeline:
    """Bids with the first three folders of their address."""
    pipeline, stream = _query(name)
    dir1, dir2, dir3 = (f"split(url, '/')[{number}]" for number in (3, 4, 5))
    stream("bids").select("auction", dir1=dir1, dir2=dir2, dir3=dir3).to("results")
    return pipeline


def q23(name: str) -> Pipeline:
    """Bids with their bidder and their auction."""
    pipeline, stream = _query(name, bids="auction")
    auctions = pipeline.table("auctions", value=Auction, key="id")
    persons = pipeline.table("persons", value=Person, key="id")
    with_auction = (
        stream("bids")
        .join(auctions)
        .select(bidder="left.bidder", price="left.price", item="right.item", seller="right.seller")
    )
    completed = with_auction.select_key("bidder").join(persons)
    completed.select(price="left.price", item="left.item", bidder="right.name").to("results")
    return pipeline


QUERIES: dict[str, Callable[[str], Pipeline]] = {
    query.__name__: query
    for query in (
        q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q10, q11, q12, q13, q14, q15, q16, q17, q18, q19, q20, q21, q22, q23,
    )
}  # fmt: skip
