"""Stock of products: each delivery adds to the product's quantity."""

from msgspec import Struct

from sluice import Pipeline


class Delivery(Struct):
    """Received pieces of a product; a negative `quantity` means pieces that were sent out."""

    productId: str
    name: str
    quantity: int


pipeline = Pipeline("products", workers=2)
deliveries = pipeline.stream("products", value=Delivery, key="productId")
stock = deliveries.group_by_key().aggregate(
    store="products_stock", quantity="sum(quantity)", deliveries="count(*)"
)
stock.to("products_stock")
