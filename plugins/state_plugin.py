"""Airflow plugins: the pipelines' state, Sluice's page, and a faster start of tasks."""

from sluice.api.plugin import StatePlugin
from sluice.orchestration.task_imports import TaskImports

__all__ = ["StatePlugin", "TaskImports"]
