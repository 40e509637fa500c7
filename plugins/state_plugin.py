"""Airflow plugins: the state of the pipelines, Sluice's page, and tasks that start sooner."""

from sluice.api.plugin import StatePlugin
from sluice.orchestration.task_imports import TaskImports

__all__ = ["StatePlugin", "TaskImports"]
