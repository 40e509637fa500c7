"""Page visits: the number of visits of each page, in total and per minute."""

from datetime import datetime

from msgspec import Struct

from sluice import Pipeline, tumbling


class Visit(Struct):
    """A visit to a page."""

    page: str
    at: datetime


pipeline = Pipeline("visits", workers=2)
visits = pipeline.stream("visits", value=Visit, key="page", event_time="at")
by_page = visits.group_by_key()

by_page.count(store="visits_total")
by_page.windowed_by(tumbling("1 minute", grace="10 seconds")).count(store="visits_per_minute")
visits.filter("page = 'checkout'").to("checkouts")
