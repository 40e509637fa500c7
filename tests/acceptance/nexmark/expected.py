"""The results of Nexmark's queries in plain Python, from the events alone."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import mean
from typing import Any

from tests.acceptance.nexmark.events import Auction, Bid, Event, Person

Results = Any
"""A dict for a query whose results are a store, and a list for a topic."""

_RANKS: dict[str, Callable[[int], bool]] = {
    "rank1": lambda price: price < 10_000,
    "rank2": lambda price: 10_000 <= price < 1_000_000,
    "rank3": lambda price: price >= 1_000_000,
}
TEN_SECONDS, TWO_SECONDS = 10_000, 2_000


def _bids(events: Sequence[Event]) -> list[Bid]:
    return [event for event in events if isinstance(event, Bid)]


def _auctions(events: Sequence[Event]) -> dict[int, Auction]:
    return {event.id: event for event in events if isinstance(event, Auction)}


def _persons(events: Sequence[Event]) -> dict[int, Person]:
    return {event.id: event for event in events if isinstance(event, Person)}


def _day(bid: Bid, form: str = "%Y-%m-%d") -> str:
    return datetime.fromtimestamp(bid.at / 1_000, UTC).strftime(form)


def q0(events: Sequence[Event]) -> Results:
    return [
        {"auction": bid.auction, "bidder": bid.bidder, "price": bid.price, "channel": bid.channel, "url": bid.url,
         "extra": bid.extra, "at": bid.at}
        for bid in _bids(events)
    ]  # fmt: skip


def q1(events: Sequence[Event]) -> Results:
    return [
        {
            "auction": bid.auction,
            "bidder": bid.bidder,
            "at": bid.at,
            "price": round(0.908 * bid.price, 3),
        }
        for bid in _bids(events)
    ]


def q2(events: Sequence[Event]) -> Results:
    return [
        {"auction": bid.auction, "price": bid.price}
        for bid in _bids(events)
        if bid.auction % 123 == 0
    ]


def q3(events: Sequence[Event]) -> Results:
    persons, results = _persons(events), []
    for auction in _auctions(events).values():
        seller = persons[auction.seller]
        if auction.category == 10 and seller.state in ("OR", "ID", "CA"):
            results.append(
                {"name": seller.name, "city": seller.city, "state": seller.state, "id": auction.id}
            )
    return results


def _winning(events: Sequence[Event]) -> dict[int, Bid]:
    """Auction → its best bid while it was open, the first one of several."""
    auctions, best = _auctions(events), dict[int, Bid]()
    for bid in _bids(events):
        auction = auctions[bid.auction]
        is_better = bid.auction not in best or bid.price > best[bid.auction].price
        if auction.at <= bid.at <= auction.expires and is_better:
            best[bid.auction] = bid
    return best


def q4(events: Sequence[Event]) -> Results:
    auctions, prices = _auctions(events), defaultdict(list)
    for auction, bid in _winning(events).items():
        prices[str(auctions[auction].category)].append(bid.price)
    return {category: {"price": mean(of_category)} for category, of_category in prices.items()}


def q5(events: Sequence[Event]) -> Results:
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    bids = _bids(events)
    for bid in bids:
        newest = bid.at - bid.at % TWO_SECONDS
        for start in range(newest, newest - TEN_SECONDS, -TWO_SECONDS):
            counts[start][str(bid.auction)] += 1
    most: dict[str, dict[str, Any]] = {}
    for start, of_window in counts.items():
        if start + TEN_SECONDS <= bids[-1].at:
            # Of several auctions with the most bids, the one whose key sorts last comes last.
            number, auction = max((number, auction) for auction, number in of_window.items())
            most[str(start)] = {"bids": number, "auction": auction}
    return most


def q6(events: Sequence[Event]) -> Results:
    auctions, closed = _auctions(events), defaultdict(list)
    for auction, bid in _winning(events).items():
        closed[str(auctions[auction].seller)].append((auctions[auction].expires, bid.price))
    return {
        seller: mean(price for _, price in sorted(prices)[-10:])
        for seller, prices in closed.items()
    }


def q7(events: Sequence[Event]) -> Results:
    best: dict[tuple[str, int, int], Bid] = {}
    for bid in _bids(events):
        start = bid.at - bid.at % TEN_SECONDS
        window = "all", start, start + TEN_SECONDS
        if window not in best or bid.price > best[window].price:
            best[window] = bid
    return {
        window: {"price": bid.price, "auction": bid.auction, "bidder": bid.bidder}
        for window, bid in best.items()
    }


def q8(events: Sequence[Event]) -> Results:
    persons, results = _persons(events), []
    for auction in _auctions(events).values():
        seller = persons[auction.seller]
        if seller.at // TEN_SECONDS == auction.at // TEN_SECONDS:
            start = seller.at // TEN_SECONDS * TEN_SECONDS
            results.append(
                {"id": seller.id, "name": seller.name, "start": start, "auction": auction.id}
            )
    return results


def q9(events: Sequence[Event]) -> Results:
    return {
        str(auction): {"price": bid.price, "bidder": bid.bidder}
        for auction, bid in _winning(events).items()
    }


def q10(events: Sequence[Event]) -> Results:
    return [
        {
            "auction": bid.auction,
            "bidder": bid.bidder,
            "price": bid.price,
            "day": _day(bid),
            "hour": _day(bid, "%H"),
        }
        for bid in _bids(events)
    ]


def q11(events: Sequence[Event]) -> Results:
    times: dict[int, list[list[int]]] = defaultdict(list)
    for bid in _bids(events):
        sessions = times[bid.bidder]
        if sessions and bid.at - sessions[-1][-1] <= TEN_SECONDS:
            sessions[-1].append(bid.at)
        else:
            sessions.append([bid.at])
    return {
        (str(bidder), each[0], each[-1]): len(each)
        for bidder, sessions in times.items()
        for each in sessions
    }


def q12(events: Sequence[Event]) -> Results:
    return Counter(str(bid.bidder) for bid in _bids(events))


def q13(events: Sequence[Event]) -> Results:
    return [
        {"auction": bid.auction, "price": bid.price, "value": side_input(bid.auction % 10)}
        for bid in _bids(events)
    ]


def side_input(key: int) -> str:
    """The value of a key in the small table of query 13."""
    return f"value {key}"


def q14(events: Sequence[Event]) -> Results:
    results = []
    for bid in _bids(events):
        if 1_000_000 < 0.908 * bid.price < 50_000_000:
            hour = int(_day(bid, "%H"))
            kind = "day" if 8 <= hour <= 18 else "night" if hour <= 6 or hour >= 20 else "other"
            results.append({"auction": bid.auction, "kind": kind, "c": bid.extra.count("c")})
    return results


def _statistics(bids: Sequence[Bid]) -> dict[str, int]:
    ranked = {
        rank: [bid for bid in bids if includes(bid.price)] for rank, includes in _RANKS.items()
    }
    statistics = {"bids": len(bids)} | {
        f"{rank}_bids": len(of_rank) for rank, of_rank in ranked.items()
    }
    for what in ("bidder", "auction"):
        statistics[f"{what}s"] = len({getattr(bid, what) for bid in bids})
        for rank, of_rank in ranked.items():
            statistics[f"{rank}_{what}s"] = len({getattr(bid, what) for bid in of_rank})
    return statistics


def _grouped(events: Sequence[Event], key: Callable[[Bid], str]) -> dict[str, list[Bid]]:
    groups: dict[str, list[Bid]] = defaultdict(list)
    for bid in _bids(events):
        groups[key(bid)].append(bid)
    return groups


def q15(events: Sequence[Event]) -> Results:
    return {day: _statistics(bids) for day, bids in _grouped(events, _day).items()}


def q16(events: Sequence[Event]) -> Results:
    groups = _grouped(events, lambda bid: f"{bid.channel} {_day(bid)}")
    return {key: _statistics(bids) for key, bids in groups.items()}


def q17(events: Sequence[Event]) -> Results:
    results = {}
    for key, bids in _grouped(events, lambda bid: f"{bid.auction} {_day(bid)}").items():
        prices = [bid.price for bid in bids]
        counts = {f"{rank}_bids": sum(map(includes, prices)) for rank, includes in _RANKS.items()}
        results[key] = {"bids": len(bids), **counts, "least": min(prices), "most": max(prices),
                        "mean": mean(prices), "total": sum(prices)}  # fmt: skip
    return results


def q18(events: Sequence[Event]) -> Results:
    bids = q0(events)
    return {f"{bid['bidder']} {bid['auction']}": bid for bid in bids}


def q19(events: Sequence[Event]) -> Results:
    groups = _grouped(events, lambda bid: str(bid.auction))
    return {
        auction: {"prices": sorted((bid.price for bid in bids), reverse=True)[:10]}
        for auction, bids in groups.items()
    }


def q20(events: Sequence[Event]) -> Results:
    auctions = _auctions(events)
    return [
        {"auction": bid.auction, "price": bid.price, "item": auctions[bid.auction].item}
        for bid in _bids(events)
        if auctions[bid.auction].category == 10
    ]


def q21(events: Sequence[Event]) -> Results:
    numbers, results = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}, []
    for bid in _bids(events):
        found = re.search("(&|^)channel_id=([^&]*)", bid.url)
        number = numbers.get(bid.channel.lower()) or (found[2] if found else None)
        if number:
            results.append({"auction": bid.auction, "channel": bid.channel, "channel_id": number})
    return results


def q22(events: Sequence[Event]) -> Results:
    results = []
    for bid in _bids(events):
        folders = bid.url.split("/")[3:6]
        results.append(
            {"auction": bid.auction} | {f"dir{n}": folder for n, folder in enumerate(folders, 1)}
        )
    return results


def q23(events: Sequence[Event]) -> Results:
    auctions, persons = _auctions(events), _persons(events)
    return [
        {"price": bid.price, "item": auctions[bid.auction].item, "bidder": persons[bid.bidder].name}
        for bid in _bids(events)
    ]
