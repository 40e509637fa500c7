"""`Client` has the methods of `AsyncClient`, with the same parameters; nothing of the server is imported."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from sluice import AsyncClient, Client

pytestmark = pytest.mark.unit

METHODS = [name for name in dir(Client) if not name.startswith("_")]


def test_both_clients_have_the_same_methods() -> None:
    assert set(METHODS) == {name for name in dir(AsyncClient) if not name.startswith("_")}
    assert "multi_get" in METHODS


@pytest.mark.parametrize("name", [*METHODS, "__init__"])
def test_methods_have_the_same_signatures_and_docstrings(name: str) -> None:
    blocking, awaited = (
        inspect.signature(getattr(client, name)) for client in (Client, AsyncClient)
    )
    assert inspect.getdoc(getattr(Client, name)) == inspect.getdoc(getattr(AsyncClient, name))
    assert blocking.parameters == awaited.parameters
    assert blocking.return_annotation == awaited.return_annotation.replace(
        "AsyncIterator", "Iterator"
    )
    assert not inspect.iscoroutinefunction(getattr(Client, name))


def test_the_client_does_not_import_the_server() -> None:
    code = "import sys, sluice.client; print(*sorted(name for name in sys.modules if name.startswith('sluice.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = {name.split(".")[1] for name in done.stdout.split()}
    assert not rooms & {
        "api",
        "server",
        "query",
        "state",
        "engine",
        "plan",
        "orchestration",
        "commands",
    }
