"""`sluice produce`: sends sample records of the examples to Kafka."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer

from sluice.commands.console import errors_as_messages, out
from sluice.errors import SettingsError
from sluice.examples import NAMES, load_example
from sluice.settings import settings

app = typer.Typer(no_args_is_help=True, help="Send sample records to Kafka.")

Seed = Annotated[int, typer.Option(help="Random seed: the same seed generates the same records.")]
Bootstrap = Annotated[
    str, typer.Option(help="HOST:PORT of the broker; default: from SLUICE_KAFKA.")
]


@app.command("orders")
def orders(
    count: Annotated[int, typer.Option(min=1, help="Number of orders.")] = 10_000,
    stores: Annotated[
        int, typer.Option(min=1, help="Number of stores; one of them is store_1234.")
    ] = 50,
    seed: Seed = 7,
    bad: Annotated[
        float, typer.Option(min=0, max=1, help="Share of records that are not valid orders.")
    ] = 0.01,
    late: Annotated[
        float, typer.Option(min=0, max=1, help="Share of orders that come two minutes late.")
    ] = 0.0,
    start: Annotated[
        str, typer.Option(help="Time of the first order in UTC, or the word `now`.")
    ] = "2022-12-05T08:55:27",
    topic: Annotated[str, typer.Option(help="The topic for the orders.")] = "orders",
    bootstrap: Bootstrap = "",
) -> None:
    """Send sample stores and orders. Creates missing topics of the orders pipeline."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sluice.examples.orders import produce_orders

    columns = (TextColumn("orders"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with errors_as_messages(), Progress(*columns) as progress:
        bar = progress.add_task("orders", total=count)
        produced = produce_orders(
            _kafka(bootstrap),
            count=count,
            stores=stores,
            seed=seed,
            bad_share=bad,
            late_share=late,
            start_ms=_epoch_ms(start),
            topic=topic,
            progress=lambda sent: progress.update(bar, completed=sent),
        )
    created = (
        f", created the topics {', '.join(produced.created_topics)}"
        if produced.created_topics
        else ""
    )
    counts = f"{produced.orders:,} orders ({produced.bad:,} bad) and {produced.stores:,} stores"
    out.print(f"{counts} in {produced.seconds:.1f} s{created}")


def _producer(name: str) -> Callable[..., None]:
    def send(
        count: Annotated[
            int | None,
            typer.Option(min=1, help="Approximate number of records; default: set by the example."),
        ] = None,
        seed: Seed = 7,
        start: Annotated[
            str, typer.Option(help="Time of the first record in UTC, or the word `now`.")
        ] = "2025-03-03T08:00:00",
        bootstrap: Bootstrap = "",
    ) -> None:
        from sluice.examples.example import create_example_topics, produce_samples

        with errors_as_messages():
            sample, kafka = load_example(name), _kafka(bootstrap)
            samples = sample.samples(count or sample.count, seed, _epoch_ms(start))
            created = create_example_topics(kafka, sample)
            sent = produce_samples(kafka, sample, samples)
            out.print(", ".join(f"{number:,} records in {topic}" for topic, number in sent.items()))
            if created:
                out.print(f"created the topics {', '.join(created)}")

    send.__doc__ = (
        f"Send sample records of the pipeline {name}. Creates missing topics of the pipeline."
    )
    return send


for _name in NAMES:
    # The command for orders has more options, so it is written out above.
    if _name != "orders":
        app.command(_name)(_producer(_name))


def _kafka(bootstrap: str) -> dict[str, str]:
    return settings().kafka | ({"bootstrap.servers": bootstrap} if bootstrap else {})


def _epoch_ms(text: str) -> int:
    try:
        time = datetime.now(UTC) if text == "now" else datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"--start {text!r} is not a time.", next_step="Write for example 2022-12-05T08:55:27."
        ) from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()) * 1000
