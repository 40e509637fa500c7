"""A real Airflow API server with the plugin, and the orders pipeline's state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.fab import FabServer
from tests.api.keycloak import KeycloakServer
from tests.api.states import orders_states, totals, windows
from tests.support.airflow_server import AirflowServer
from tests.support.states import NOON, States

REPOSITORY = Path(__file__).parents[2]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect the tests about Keycloak only if `make test-keycloak` has installed one."""
    if collection_path.name == "test_keycloak.py" and not config.getoption("--keycloak"):
        return True
    return None


@pytest.fixture(scope="package")
def states(tmp_path_factory: pytest.TempPathFactory) -> States:
    """Two snapshots of the orders pipeline, and a pipeline `payroll` that only some users may read."""
    home = tmp_path_factory.mktemp("sluice")
    states = orders_states(f"sqlite:///{home}")
    states.publish(
        [
            *totals("general", {"store_1234": (1, "27.00"), "store_5": (2, "5.10")}),
            *totals("restaurant", {"store_1234": (3, "0.00")}),
            *windows("general", "store_1234", {"2022-12-05T08:55:15": (1, "27.00")}),
        ]
    )
    states.publish(
        [
            *totals("general", {"store_1234": (2, "54.00"), "a/b <i>": (1, "1.00")}),
            *windows("general", "store_1234", {"2022-12-05T08:55:30": (1, "27.00")}),
            *windows("restaurant", "store_9", {"2022-12-05T08:55:15": (3, "9.90")}),
            (4, "store_1234", -1, -1, '[{"locationId":"store_1234"}]'),
        ],
        published_at=NOON,
        counts={
            "read": 10,
            "applied": 7,
            "dead_letter/malformed": 2,
            "late/general_orders_count_window": 1,
        },
    )
    payroll = States(states.database, pipeline="payroll", workers=1)
    payroll.publish({"boss": "[1,2]", "clerk": "[3,4]"})
    return states


@pytest.fixture(scope="package")
def airflow(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, states: States
) -> Iterator[AirflowServer]:
    """The server. No user but `admin` may read the DAG `payroll`.

    `viewer` may read `orders` and `fraud`, `editor` may edit `orders`, and `stranger` may read no
    DAG.
    """
    environment = {
        "SLUICE_HOME": states.database.removeprefix("sqlite:///"),
        "SLUICE_PIPELINES": str(REPOSITORY / "spark_jobs"),
        "AIRFLOW__CORE__AUTH_MANAGER": "tests.api.auth.PartialAuthManager",
        "PYTHONPATH": str(REPOSITORY),
    }
    home, plugins = tmp_path_factory.mktemp("airflow"), REPOSITORY / "plugins"
    users = {"admin": "admin", "viewer": "viewer", "editor": "user", "stranger": "viewer"}
    server = AirflowServer(home, plugins_folder=plugins, env=environment, users=users)
    if request.config.getoption("--fab"):
        of_users = {
            "viewer": {"DAG:orders": ["can_read"], "DAG:fraud": ["can_read"]},
            "editor": {"DAG:orders": ["can_read", "can_edit"]},
            "stranger": {},
        }
        server = FabServer(home, environment, of_users, plugins_folder=plugins)
    if request.config.getoption("--keycloak"):
        may = {
            "viewer": {"GET": ["orders", "fraud"]},
            "editor": {"GET": ["orders"], "PUT": ["orders"]},
            "stranger": {},
        }
        server = KeycloakServer(home, environment, may, plugins_folder=plugins)
    with server:
        yield server


@pytest.fixture(scope="package")
def viewer(airflow: AirflowServer) -> Iterator[httpx.Client]:
    with airflow.client("viewer") as client:
        yield client


@pytest.fixture(scope="package")
def admin(airflow: AirflowServer) -> Iterator[httpx.Client]:
    with airflow.client("admin") as client:
        yield client


@pytest.fixture(scope="package")
def anonymous(airflow: AirflowServer) -> Iterator[httpx.Client]:
    with airflow.client(None) as client:
        yield client
