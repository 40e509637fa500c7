"""The pipeline whose state is kept: one operator of each kind of state."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from sluice import Pipeline, session, tumbling, within


class Visit(Struct):
    """A visit of a user to a page."""

    page: str
    user: str
    at: datetime
    seconds: int


class Page(Struct):
    """A page and its owner."""

    page: str
    owner: str


def visits_pipeline() -> Pipeline:
    """A pipeline with totals, windows, sessions, a table, joins and duplicates."""
    pipeline = Pipeline("visits", workers=2)
    visits = pipeline.stream("visits", value=Visit, key="page", event_time="at")
    pages = pipeline.table("pages", value=Page, key="page", store="owners")
    by_page = visits.group_by_key()
    by_page.aggregate(store="totals", visits="count(*)", seconds="sum(seconds)")
    by_page.windowed_by(tumbling("1 minute", grace="10 seconds")).count(store="per_minute")
    visits.group_by("user").windowed_by(session("5 minutes")).count(store="sessions")
    visits.join(pages).select(page="left.page", owner="right.owner").to("owned")
    visits.join(visits, within("10 seconds")).select(page="left.page").to("pairs")
    return pipeline
