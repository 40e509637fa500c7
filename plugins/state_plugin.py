"""Airflow plugin: serves the state of the pipelines, and adds Sluice's page to the navigation."""

from sluice.api.plugin import StatePlugin

__all__ = ["StatePlugin"]
