"""The permissions of Airflow's users. A user who may read a pipeline's DAG may see its stores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Literal, TypeAlias

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.models.dag import DagModel
from typing_extensions import override

from sluice.api.auth.permissions import Principal
from sluice.errors import PermissionUnknown

log = logging.getLogger(__name__)

_DagMethod: TypeAlias = Literal["GET", "PUT"]
"""Airflow's names of the permissions to read and to edit a DAG."""


def airflow_allows(user: BaseUser, pipeline: str, method: _DagMethod) -> bool:
    """Return whether Airflow lets a user read or edit the DAG of a pipeline.

    Block while Airflow reads its database, or asks another server. Raise PermissionUnknown if
    Airflow or that server fails.
    """
    details = DagDetails(id=pipeline, team_name=DagModel.get_team_name(pipeline))
    manager: Any = get_auth_manager()
    try:
        return bool(manager.is_authorized_dag(method=method, details=details, user=user))
    except Exception as error:
        # An auth manager that asks another server raises errors of its own libraries.
        log.exception("Airflow's auth manager has failed")
        raise PermissionUnknown(
            "Airflow's auth manager could not check your permissions."
        ) from error


class AirflowUser(Principal):
    """A user of Airflow, with a cache of the user's permissions."""

    def __init__(self, user: BaseUser) -> None:
        self._user = user
        self._permissions: dict[tuple[str, _DagMethod], asyncio.Future[bool]] = {}

    def renew(self, user: BaseUser) -> None:
        """Use the credentials of `user` from now on, because they may be newer."""
        self._user = user

    @property
    @override
    def name(self) -> str:
        return self._user.get_name()

    @override
    async def may_read(self, pipeline: str) -> bool:
        return await self._is_allowed(pipeline, "GET")

    @override
    async def may_edit(self, pipeline: str) -> bool:
        return await self.may_read(pipeline) and await self._is_allowed(pipeline, "PUT")

    @override
    async def readable(self, pipelines: Collection[str]) -> Collection[str]:
        # Check all pipelines at once, because a manager such as Keycloak's sends a request to
        # another server for each DAG.
        allowed = await asyncio.gather(*[self.may_read(pipeline) for pipeline in pipelines])
        return [pipeline for pipeline, may in zip(pipelines, allowed, strict=True) if may]

    async def _is_allowed(self, pipeline: str, method: _DagMethod) -> bool:
        permission = self._permissions.get((pipeline, method))
        # A failed look-up gives no answer, so the user's next request repeats the look-up.
        if permission is None or (permission.done() and permission.exception() is not None):
            lookup = asyncio.to_thread(airflow_allows, self._user, pipeline, method)
            permission = self._permissions[pipeline, method] = asyncio.ensure_future(lookup)
        # A request that is cancelled must not cancel the look-up for the user's other requests.
        if permission.done():
            return permission.result()
        return await asyncio.shield(permission)
