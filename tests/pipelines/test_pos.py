"""Point of sale: shipments, loyalty points, masked lines."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.testing import TopologyTestDriver
from tests.pipelines.conftest import Drive

ADDRESS = {
    "AddressLine": "7 Lake Road",
    "City": "Pune",
    "State": "Maharashtra",
    "PinCode": "411001",
    "ContactNumber": "9876543210",
}
LINES = [
    {
        "ItemCode": "358",
        "ItemDescription": "Chair",
        "ItemPrice": 1500.5,
        "ItemQty": 1,
        "TotalValue": 1500.5,
    },
    {
        "ItemCode": "213",
        "ItemDescription": "Lamp",
        "ItemPrice": 250.25,
        "ItemQty": 2,
        "TotalValue": 500.5,
    },
]


def invoice(
    number: str, store: str = "STR1", card: str = "4629", amount: float = 2001, **more: Any
) -> dict[str, Any]:
    """An invoice of a regular customer who takes the goods home."""
    return {
        "InvoiceNumber": number,
        "CreatedTime": 1595688900000,
        "StoreID": store,
        "PosID": "POS1",
        "CashierID": "OAS1",
        "CustomerType": "NON-PRIME",
        "CustomerCardNo": card,
        "TotalAmount": amount,
        "NumberOfItems": 2,
        "PaymentMethod": "CARD",
        "TaxableAmount": amount,
        "CGST": 50,
        "SGST": 50,
        "CESS": 2.5,
        "DeliveryType": "TAKEAWAY",
        "InvoiceLineItems": LINES,
    } | more


HOME: dict[str, Any] = {"DeliveryType": "HOME-DELIVERY", "DeliveryAddress": ADDRESS}
PRIME: dict[str, Any] = {"CustomerType": "PRIME"}


@pytest.fixture
def pos(drive: Drive) -> TopologyTestDriver:
    return drive("pos")


@pytest.mark.spark
def test_home_deliveries_are_shipped_and_every_line_is_masked(pos: TopologyTestDriver) -> None:
    pos.pipe("pos", invoice("1", **HOME), key="STR1")
    pos.pipe("pos", invoice("2", store="STR2"), key="STR2")

    (pickled,) = pos.read("shipment")
    assert pickled.key == "STR1"
    assert pickled.value["InvoiceNumber"] == "1"
    assert pickled.value["DeliveryAddress"] == ADDRESS, "a delivery needs an address"

    first, second, third, fourth = (record.value for record in pos.read("hadoop-sink"))
    assert first == {
        "InvoiceNumber": "1",
        "CreatedTime": 1595688900000,
        "StoreID": "STR1",
        "PosID": "POS1",
        "CustomerType": "NON-PRIME",
        "PaymentMethod": "CARD",
        "DeliveryType": "HOME-DELIVERY",
        "City": "Pune",
        "State": "Maharashtra",
        "PinCode": "411001",
        "ItemCode": "358",
        "ItemDescription": "Chair",
        "ItemPrice": 1500.5,
        "ItemQty": 1,
        "TotalValue": 1500.5,
    }
    assert (second["InvoiceNumber"], second["ItemCode"], second["City"]) == ("1", "213", "Pune")
    for line in (third, fourth):
        assert line["InvoiceNumber"] == "2"
        assert {line["City"], line["State"], line["PinCode"]} == {None}, (
            "only home deliveries are shipped"
        )
    assert pos.read("loyalty") == []


@pytest.mark.spark
def test_a_card_earns_points_in_every_store(pos: TopologyTestDriver) -> None:
    pos.pipe("pos", invoice("1", store="STR1", card="4629", amount=2000, **PRIME), key="STR1")
    pos.pipe("pos", invoice("2", store="STR2", card="4629", amount=100.5, **PRIME), key="STR2")
    pos.pipe("pos", invoice("3", store="STR1", card="7777", amount=50, **PRIME), key="STR1")
    pos.pipe("pos", invoice("4", store="STR1", card="4629", amount=1000), key="STR1")
    assert [(record.key, record.value) for record in pos.read("loyalty")] == [
        ("4629", notification("1", "4629", 2000, 40, 40)),
        ("4629", notification("2", "4629", 100.5, 2.01, 42.01)),
        ("7777", notification("3", "7777", 50, 1, 1)),
    ]

    pos.pipe("pos", invoice("5", store="STR3", card="4629", amount=10, **PRIME), key="STR3")
    (last,) = pos.read("loyalty")
    assert last.value == notification("5", "4629", 10, 0.2, 42.21), (
        "the sum continues in the next batch"
    )


def notification(
    number: str, card: str, amount: float, earned: float, total: float
) -> dict[str, Any]:
    return {
        "InvoiceNumber": number,
        "CustomerCardNo": card,
        "TotalAmount": amount,
        "EarnedLoyaltyPoints": earned,
        "TotalLoyaltyPoints": total,
    }
