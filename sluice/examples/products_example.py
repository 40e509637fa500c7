"""Sample deliveries of products, and the expected stock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from random import Random

from sluice.examples.example import Example, Results, Sample, json_bytes

_NAMES = ("Chair", "Desk", "Lamp", "Shelf", "Sofa", "Stool", "Table", "Wardrobe")
_BAD_EVERY = 97
"""Every 97th delivery is invalid: its quantity is not a number."""


def samples(count: int, seed: int, start_ms: int) -> Iterator[Sample]:
    """Yield one delivery per second, of one of eight products.

    Some have a negative quantity, a few are invalid.
    """
    random = Random(seed)
    for number in range(count):
        product = random.randrange(len(_NAMES))
        quantity: int | str = random.randint(-3, 20)
        if number % _BAD_EVERY == _BAD_EVERY - 1:
            quantity = "many"
        delivery = {"productId": f"p{product}", "name": _NAMES[product], "quantity": quantity}
        yield Sample("products", f"p{product}", json_bytes(delivery), start_ms + 1_000 * number)


def expected(records: Iterable[Sample]) -> Results:
    """Return the stock of each product, and the number of its deliveries."""
    results, stock = Results(), dict[str, dict[str, int]]()
    for record in records:
        delivery = json.loads(record.value or b"{}")
        if type(delivery["quantity"]) is not int:
            results.dead_letters["contract"] += 1
            continue
        product = stock.setdefault(delivery["productId"], {"quantity": 0, "deliveries": 0})
        product["quantity"] += delivery["quantity"]
        product["deliveries"] += 1
    results.stores["products_stock"] = results.tables["products_stock"] = dict(stock)
    return results


EXAMPLE = Example(
    name="products",
    topics={"products": 3},
    outputs={"products_stock": 3},
    count=1_000,
    samples=samples,
    expected=expected,
    paths=(
        "/sluice/v1/stores/products_stock/keys/p1",
        "/sluice/v1/stores/products_stock/top?field=quantity&limit=2",
    ),
)
