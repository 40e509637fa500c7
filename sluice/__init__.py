"""Stream processing and queryable state for Python teams who run Airflow, Spark and Kafka."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sluice.version import __version__ as __version__

if TYPE_CHECKING:
    from sluice.api.routes.custom_routes import Routes as Routes
    from sluice.api.routes.custom_routes import Stores as Stores
    from sluice.client import AsyncClient as AsyncClient
    from sluice.client import Client as Client
    from sluice.public_names import *  # noqa: F403
    from sluice.query.read_without_server import read_store as read_store

_MODULES = {
    "AsyncClient": "sluice.client",
    "Client": "sluice.client",
    "Routes": "sluice.api.routes.custom_routes",
    "Stores": "sluice.api.routes.custom_routes",
    "read_store": "sluice.query.read_without_server",
}
"""Name → its module. These names are not in `sluice.public_names`, because their modules import
HTTP clients or a database."""


def __getattr__(name: str) -> Any:
    # Names are imported on demand. Every command and every Python process of Spark imports this
    # package. Few of them need the names of a topology, whose import takes 0.15 s.
    if name == "__all__":
        return sorted({*import_module("sluice.public_names").__all__, *_MODULES})
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(import_module(_MODULES.get(name, "sluice.public_names")), name)
