"""Events of an auction house after Nexmark's description: of fifty, one is a person, three are auctions, 46 are bids.

The numbers are drawn from a seed, so that a test and a benchmark can compute the results once more
in plain Python.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec import Struct

START = 1_700_000_000_000
"""The time of the first event, in ms."""
CATEGORIES = range(10, 15)
CHANNELS = ("Apple", "Google", "Facebook", "Baidu", "channel-17", "channel-42")
_STATES = {
    "OR": "Portland",
    "ID": "Boise",
    "CA": "Redwood City",
    "AZ": "Phoenix",
    "WA": "Seattle",
    "WY": "Cheyenne",
}
_NAMES = ("Ann Walton", "Bob Noris", "Cay Abrams", "Dan Shultz", "Eve Smith")
_MOST_OPEN = 100
"""Bids are for the newest auctions."""


class Person(Struct):
    """A person, who may sell and bid."""

    id: int
    name: str
    city: str
    state: str
    at: int


class Auction(Struct):
    """An item for sale until `expires`."""

    id: int
    item: str
    initial_bid: int
    seller: int
    category: int
    at: int
    expires: int


class Bid(Struct):
    """A bid for an auction's item."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    extra: str
    at: int


Event = Person | Auction | Bid


def events(count: int, *, seed: int = 1, interval_ms: int = 10) -> Iterator[Event]:
    """Events in the order of their times, one every `interval_ms`."""
    chance = random.Random(seed)
    persons = auctions = 0
    for number in range(count):
        at = START + number * interval_ms
        match number % 50:
            case 0:
                state = chance.choice([*_STATES])
                yield Person(persons, chance.choice(_NAMES), _STATES[state], state, at)
                persons += 1
            case 1 | 2 | 3:
                yield Auction(
                    id=auctions,
                    item=f"item {auctions}",
                    initial_bid=chance.randrange(100, 1_000),
                    seller=chance.randrange(max(0, persons - 10), persons),
                    category=chance.choice(CATEGORIES),
                    at=at,
                    expires=at + chance.randrange(1_000, 30_000),
                )
                auctions += 1
            case _:
                channel = chance.choice(CHANNELS)
                query = (
                    f"&channel_id={chance.randrange(100)}" if channel.startswith("channel") else ""
                )
                yield Bid(
                    auction=chance.randrange(max(0, auctions - _MOST_OPEN), auctions),
                    bidder=chance.randrange(persons),
                    price=int(10 ** (chance.random() * 6 + 2)),
                    channel=channel,
                    url=f"https://www.nexmark.com/{'/'.join(chance.choices('abcd', k=3))}/item.htm?query=1{query}",
                    extra="".join(chance.choices("abcdefg", k=20)),
                    at=at,
                )


def topic_of(event: Event) -> str:
    """The topic of an event."""
    return {Person: "persons", Auction: "auctions", Bid: "bids"}[type(event)]
