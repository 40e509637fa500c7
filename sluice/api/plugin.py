"""Airflow plugin that mounts the REST API and adds the page to the navigation."""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from sluice.api.mounted import CausesNoted, Mounted

_ROOT = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")


class StatePlugin(AirflowPlugin):
    """Adds the REST API of the pipelines' state, custom routes, and the page."""

    name = "sluice"
    fastapi_apps = [  # noqa: RUF012 - declared like this by Airflow
        {"name": "Sluice", "app": Mounted("generic_app"), "url_prefix": "/sluice"},
        {"name": "Sluice custom routes", "app": Mounted("custom_routes_app"), "url_prefix": "/v1"},
    ]
    fastapi_root_middlewares = [  # noqa: RUF012 - declared like this by Airflow
        {"name": "Sluice", "middleware": CausesNoted},
    ]
    external_views = [  # noqa: RUF012 - declared like this by Airflow
        {
            "name": "Sluice",
            "href": f"{_ROOT}/sluice/",
            "destination": "nav",
            "url_route": "sluice",
            "icon": f"{_ROOT}/sluice/static/icon.svg",
            "nav_top_level": True,
        },
        {
            "name": "Sluice",
            # Airflow replaces `{DAG_ID}` and `{RUN_ID}` with the ids of the DAG and the run that it
            # shows.
            "href": f"{_ROOT}/sluice/#/pipelines/{{DAG_ID}}",
            "destination": "dag",
            "url_route": "sluice_pipeline",
            "icon": f"{_ROOT}/sluice/static/icon.svg",
        },
        {
            "name": "Sluice",
            "href": f"{_ROOT}/sluice/#/pipelines/{{DAG_ID}}/runs?run={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "sluice_run",
            "icon": f"{_ROOT}/sluice/static/icon.svg",
        },
        {
            "name": "Sluice",
            "href": f"{_ROOT}/sluice/#/pipelines/{{DAG_ID}}/runs?run={{RUN_ID}}",
            "destination": "task_instance",
            "url_route": "sluice_task",
            "icon": f"{_ROOT}/sluice/static/icon.svg",
        },
    ]
