"""An auth manager that hides DAGs from some users.

Airflow's own manager for tests lets every user read every DAG.
"""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class PartialAuthManager(SimpleAuthManager):
    def is_authorized_dag(self, *, user: Any, details: Any = None, **asked: Any) -> bool:
        hidden = details is not None and details.id == "payroll" and user.username != "admin"
        hidden |= user.username == "stranger"
        return not hidden and super().is_authorized_dag(user=user, details=details, **asked)
