"""Converts prices to euros."""

from msgspec import Struct

from sluice import Pipeline

RATES = {"USD": 0.92, "GBP": 1.17}


class Price(Struct):
    shop: str
    amount: int
    currency: str = "EUR"


class InEuros(Struct):
    shop: str
    euros: float


def in_euros(price: Price) -> InEuros:
    return InEuros(price.shop, price.amount * RATES[price.currency])


pipeline = Pipeline("prices", workers=1)
pipeline.stream("prices", value=Price).map_values(in_euros, returns=InEuros).to("prices_in_euros")
