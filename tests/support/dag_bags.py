"""Airflow's DagBag, which each release has in another module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.airflow_releases import RELEASE

if TYPE_CHECKING or RELEASE >= (3, 2):
    from airflow.dag_processing.dagbag import DagBag
else:
    from airflow.models.dagbag import DagBag

__all__ = ["DagBag"]
