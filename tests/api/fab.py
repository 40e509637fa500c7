"""An Airflow with the FAB auth manager, whose users have permissions for single DAGs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from tests.support.airflow_server import AirflowServer

Permissions = Mapping[str, Sequence[str]]
"""Resource of FAB, such as `DAG:orders` → actions."""


class FabServer(AirflowServer):
    """A server with a user `admin`, and other users whose roles have only the given permissions."""

    def __init__(
        self, home: Path, env: Mapping[str, str], users: Mapping[str, Permissions], **others: Any
    ) -> None:
        manager = {
            "AIRFLOW__CORE__AUTH_MANAGER": "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
        }
        super().__init__(
            home, env=dict(env) | manager, users=dict.fromkeys([*users, "admin"], ""), **others
        )
        self._permissions = users

    @override
    def prepare(self) -> None:
        self.run("db", "migrate")
        users = {
            name: (password, self._permissions.get(name))
            for name, password in self.passwords.items()
        }
        command = [sys.executable, "-m", "tests.api.fab"]
        subprocess.run(
            command, env=self.environment, input=json.dumps(users), text=True, check=True
        )


def make_users(users: Mapping[str, tuple[str, Permissions | None]]) -> None:
    """Make users and their roles: name → password and permissions, or None for the role Admin.

    The command `airflow roles add-perms` needs DAGs that Airflow has loaded; these tests have none.
    """
    from airflow.providers.fab.auth_manager.cli_commands.utils import (  # type: ignore[import-not-found,unused-ignore]
        get_application_builder,
    )

    with get_application_builder() as builder:
        security = builder.sm
        for name, (password, permissions) in users.items():
            role = security.find_role("Admin") if permissions is None else security.add_role(name)
            for resource, actions in (permissions or {}).items():
                for action in actions:
                    security.add_permission_to_role(
                        role, security.create_permission(action, resource)
                    )
            assert security.add_user(name, name, name, f"{name}@example.com", role, password)


if __name__ == "__main__":
    make_users(json.load(sys.stdin))
