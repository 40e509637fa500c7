"""Stock: each message adds to a product's quantity."""

from msgspec import Struct

from sluice import Pipeline


class Delivery(Struct):
    """So many pieces of a product have come in, or gone if the quantity is below zero."""

    productId: str
    name: str
    quantity: int


pipeline = Pipeline("products", workers=2)
deliveries = pipeline.stream("products", value=Delivery, key="productId")
deliveries.group_by_key().aggregate(store="products_stock", quantity="sum(quantity)", deliveries="count(*)")
