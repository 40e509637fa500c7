"""Stock: each message adds to a product's quantity."""

from msgspec import Struct

from sluice import Pipeline


class Delivery(Struct):
    """Pieces of a product that came in, or went out if `quantity` is negative."""

    productId: str
    name: str
    quantity: int


pipeline = Pipeline("products", workers=2)
deliveries = pipeline.stream("products", value=Delivery, key="productId")
stock = deliveries.group_by_key().aggregate(store="products_stock", quantity="sum(quantity)", deliveries="count(*)")
stock.to("products_stock")
