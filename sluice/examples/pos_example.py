"""Sample invoices of a retailer, and the expected shipments, loyalty points and invoice lines."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from random import Random
from typing import Any

from sluice.examples.example import Example, Results, Sample, json_bytes

_STORES = 6
_CARDS = 12
_POINTS = Decimal("0.02")
_BAD_EVERY = 100
_ITEMS = (("213", "Lamp"), ("358", "Chair"), ("421", "Desk"), ("533", "Shelf"))
_PLACES = (
    ("Pune", "Maharashtra", "411001"),
    ("Panaji", "Goa", "403001"),
    ("Mysuru", "Karnataka", "570001"),
)
_HEADER = (
    "InvoiceNumber",
    "CreatedTime",
    "StoreID",
    "PosID",
    "CustomerType",
    "PaymentMethod",
    "DeliveryType",
)


def samples(count: int, seed: int, start_ms: int) -> Iterator[Sample]:
    """One invoice per second, from one of six stores. The key of a record is the store.

    A few are invalid: the customer type is missing.
    """
    random = Random(seed)
    for number in range(count):
        invoice = _invoice(random, number, start_ms + 1_000 * number)
        if number % _BAD_EVERY == _BAD_EVERY - 1:
            del invoice["CustomerType"]
        yield Sample("pos", invoice["StoreID"], json_bytes(invoice), invoice["CreatedTime"])


def _invoice(random: Random, number: int, time_ms: int) -> dict[str, Any]:
    lines = [_line(random) for _ in range(random.randint(1, 3))]
    total = sum((line["TotalValue"] for line in lines), Decimal(0))
    invoice = {
        "InvoiceNumber": str(10_000 + number),
        "CreatedTime": time_ms,
        "StoreID": f"STR{random.randrange(_STORES)}",
        "PosID": f"POS{random.randrange(3)}",
        "CashierID": "OAS1",
        "CustomerType": random.choice(("PRIME", "NON-PRIME")),
        "CustomerCardNo": f"46290{random.randrange(_CARDS):02}",
        "TotalAmount": total,
        "NumberOfItems": len(lines),
        "PaymentMethod": random.choice(("CARD", "CASH")),
        "TaxableAmount": total,
        "CGST": Decimal("2.50"),
        "SGST": Decimal("2.50"),
        "CESS": Decimal("0.12"),
        "DeliveryType": random.choice(("HOME-DELIVERY", "TAKEAWAY")),
        "InvoiceLineItems": lines,
    }
    if invoice["DeliveryType"] == "HOME-DELIVERY":
        city, state, pin = random.choice(_PLACES)
        invoice["DeliveryAddress"] = {
            "AddressLine": f"{random.randint(1, 99)} Lake Road", "City": city, "State": state, "PinCode": pin,
            "ContactNumber": f"98765432{random.randrange(100):02}",
        }  # fmt: skip
    return invoice


def _line(random: Random) -> dict[str, Any]:
    code, name = random.choice(_ITEMS)
    price, quantity = Decimal(random.randint(100, 99_999)) / 100, random.randint(1, 4)
    return {
        "ItemCode": code, "ItemDescription": name, "ItemPrice": price, "ItemQty": quantity,
        "TotalValue": price * quantity,
    }  # fmt: skip


def expected(records: Iterable[Sample]) -> Results:
    """The shipments, the points of each card in the order of the invoices, and the lines without personal data."""
    results, points = Results(), defaultdict[str, Decimal](Decimal)
    for record in records:
        # A float would change amounts, and their sums are compared digit by digit.
        invoice = json.loads(record.value or b"{}", parse_float=Decimal)
        if "CustomerType" not in invoice:
            results.dead_letters["contract"] += 1
            continue
        store, card = invoice["StoreID"], invoice["CustomerCardNo"]
        address = invoice.get("DeliveryAddress")
        if address is not None:
            results.write("shipment", record.key, invoice)
        if invoice["CustomerType"] == "PRIME":
            earned = invoice["TotalAmount"] * _POINTS
            points[card] += earned
            names = ("InvoiceNumber", "CustomerCardNo", "TotalAmount")
            notification = {name: invoice[name] for name in names}
            notification |= {"EarnedLoyaltyPoints": earned, "TotalLoyaltyPoints": points[card]}
            results.write("loyalty", card, notification)
        # An invoice without a delivery has null in these columns.
        place = {name: address and address[name] for name in ("City", "State", "PinCode")}
        for line in invoice["InvoiceLineItems"]:
            results.write(
                "hadoop-sink", store, {name: invoice[name] for name in _HEADER} | place | line
            )
    results.stores["points"] = {card: {"total": total} for card, total in points.items()}
    return results


EXAMPLE = Example(
    name="pos",
    topics={"pos": 3},
    outputs={"shipment": 3, "loyalty": 3, "hadoop-sink": 3},
    count=1_000,
    samples=samples,
    expected=expected,
    paths=("/sluice/v1/stores/points/keys/4629001", "/sluice/v1/stores/points?limit=2"),
)
