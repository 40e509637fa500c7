"""Dead letters of the gallery's orders, in place of a broker's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from sluice.kafka.dead_letter_topic import (
    DeadLetter,
    DeadLetterFilter,
    MatchingLetters,
    RedriveMarker,
)

_RIGHT = (
    '{"orderId":%d,"locationId":"store_1234","finalAmount":27.00,"orderType":"GENERAL",'
    '"orderLineItems":[{"item":"tea","count":2,"amount":13.50}],"orderedDateTime":"2022-12-05T08:55:27"}'
)
_OF_STORE_7 = 9
_KINDS = (
    ("malformed", "", "The value is not JSON: it ends after 17 bytes.", '{"orderId": 12, "'),
    ("digits", "", "finalAmount: 27.005 has more than 2 decimal places.", "27.005"),
    ("contract", "", "orderType: invalid value 'KITCHEN'.", "KITCHEN"),
    ("processing", "map-8", "ZeroDivisionError: division by zero", ""),
)


def find(
    _kafka: object, _pipeline: str, chosen: DeadLetterFilter, limit: int, _most_bytes: int = 10_000
) -> MatchingLetters:
    """Return the chosen ones of 92 dead letters, two of which were re-driven."""
    matches = MatchingLetters()
    again = "orders", 0, 2_000_001
    for number in range(92):
        letter = _letter(number)
        if number in (3, 7):
            target = (*again[:2], again[2] if number == 3 else 2_000_002)
            matches.markers[0, number] = RedriveMarker(datetime.now(UTC), *target, [])
            matches.failed_again = {again}
        if chosen.matches(letter):
            matches.reasons[letter.reason] += 1
            matches.add_to_group(letter)
            matches.letters.append(letter)
    matches.letters = matches.letters[:limit]
    return matches


def _letter(number: int) -> DeadLetter:
    reason, step, detail, change = _KINDS[min(number % 7, 3)]
    value = _RIGHT % number
    if reason == "malformed":
        value = change
    elif reason == "digits":
        value = value.replace("27.00", change)
    elif reason == "contract":
        value = value.replace("GENERAL", change)
    own: Mapping[str, str] = {
        "sluice.reason": reason,
        "sluice.detail": detail,
        "sluice.topic": "orders",
        "sluice.partition": str(number % 2),
        "sluice.offset": str(1_000 + number),
        "sluice.step": step,
    }
    at = datetime.now(UTC) - timedelta(minutes=7 * number)
    headers = [("trace", b"00-4bf92f3577b34da6")]
    key = b"store_7" if number == _OF_STORE_7 else b"store_1234"
    return DeadLetter(0, number, at, key, value.encode(), headers, own, len(value))
