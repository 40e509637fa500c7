"""Point of sale: shipments, loyalty points, and invoice lines without personal data, from invoices of all stores."""

from decimal import Decimal
from typing import Annotated, Literal

from msgspec import Struct

from sluice import Context, Decimal2, Digits, Pipeline, Record, struct

Points = Annotated[Decimal, Digits(16, 4)]


class Address(Struct):
    """A delivery address."""

    AddressLine: str
    City: str
    State: str
    PinCode: str
    ContactNumber: str


class LineItem(Struct):
    """One line of an invoice."""

    ItemCode: str
    ItemDescription: str
    ItemPrice: Decimal2
    ItemQty: int
    TotalValue: Decimal2


class Invoice(Struct):
    """An invoice as sent by a till, keyed by store. `CreatedTime` is in epoch ms."""

    InvoiceNumber: str
    CreatedTime: int
    StoreID: str
    PosID: str
    CashierID: str
    CustomerType: Literal["PRIME", "NON-PRIME"]
    CustomerCardNo: str
    TotalAmount: Decimal2
    NumberOfItems: int
    PaymentMethod: str
    TaxableAmount: Decimal2
    CGST: Decimal2
    SGST: Decimal2
    CESS: Decimal2
    DeliveryType: Literal["HOME-DELIVERY", "TAKEAWAY"]
    InvoiceLineItems: list[LineItem]
    DeliveryAddress: Address | None = None


class Notification(Struct):
    """A message to a customer of the loyalty programme."""

    InvoiceNumber: str
    CustomerCardNo: str
    TotalAmount: Decimal2
    EarnedLoyaltyPoints: Points
    TotalLoyaltyPoints: Points


class Loyalty:
    """Adds up the points of each card. The stream is keyed by card, so invoices of all stores count together."""

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Invoice]) -> None:
        invoice = record.value
        earned = invoice.TotalAmount * Decimal("0.02")
        points = self.context.store("points")
        total = points.get("total", Decimal(0)) + earned
        points.put("total", total)
        self.context.forward(
            record.key,
            Notification(
                invoice.InvoiceNumber, invoice.CustomerCardNo, invoice.TotalAmount, earned, total
            ),
        )


pipeline = Pipeline("pos", workers=2)
invoices = pipeline.stream("pos", value=Invoice, key="StoreID")
at_home = "DeliveryType = 'HOME-DELIVERY'"

invoices.filter(at_home).to("shipment")

prime = invoices.filter("CustomerType = 'PRIME'").select_key("CustomerCardNo")
prime.process(Loyalty, stores={"points": Decimal}, returns=Notification).output.to("loyalty")

header = (
    "InvoiceNumber",
    "CreatedTime",
    "StoreID",
    "PosID",
    "CustomerType",
    "PaymentMethod",
    "DeliveryType",
)
place = {name: f"DeliveryAddress.{name}" for name in ("City", "State", "PinCode")}
hidden = dict.fromkeys(("AddressLine", "ContactNumber"), "CAST(NULL AS STRING)")
masked = invoices.select(
    *header,
    "InvoiceLineItems",
    CustomerCardNo="CAST(NULL AS STRING)",
    DeliveryAddress=f"IF({at_home}, {struct(hidden | place)}, NULL)",
)
line = {name: f"line.{name}" for name in LineItem.__struct_fields__}
flat = struct({name: name for name in header} | place | line)
masked.flat_map_values(f"transform(InvoiceLineItems, line -> {flat})").to("hadoop-sink")
