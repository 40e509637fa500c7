"""Stock of products."""

from __future__ import annotations

from tests.pipelines.conftest import Drive


def test_each_delivery_adds_to_its_products_stock(drive: Drive) -> None:
    driver = drive("products")
    for product, quantity in (("p1", 10), ("p2", 5), ("p1", 7), ("p2", -2)):
        driver.pipe(
            "products", {"productId": product, "name": product.upper(), "quantity": quantity}
        )
    assert driver.store("products_stock") == {
        "p1": {"quantity": 17, "deliveries": 2},
        "p2": {"quantity": 3, "deliveries": 2},
    }

    assert {one.key: one.value["quantity"] for one in driver.read("products_stock")} == {
        "p1": 17,
        "p2": 3,
    }, "and published"

    driver.pipe("products", {"productId": "p1", "name": "P1", "quantity": 1})
    driver.pipe("products", {"productId": "p1", "name": "P1", "quantity": "many"})
    assert driver.store("products_stock")["p1"] == {"quantity": 18, "deliveries": 3}
    assert [one.headers["sluice.reason"] for one in driver.dead_letters()] == ["contract"]
