"""Arguments and options that commands about several subjects share."""

from __future__ import annotations

from typing import Annotated

import typer

PipelineName = Annotated[str, typer.Argument(help="The pipeline's name.", metavar="PIPELINE")]
Master = Annotated[str, typer.Option(help="The Spark master.")]
LOCAL = "local[2]"
"""The default of `Master`."""
FromTopics = Annotated[
    bool,
    typer.Option(
        "--from-topics",
        help=(
            "If the topics have deleted records that the state contains, compute the state "
            "without them instead of refusing."
        ),
    ),
]
