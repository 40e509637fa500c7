"""A real Keycloak, and an Airflow whose users and permissions it keeps."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import secrets
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from typing_extensions import override

from sluice.provision.ivy import Module, fetch
from sluice.provision.machine_checks import find_java
from tests.support.airflow_server import ANSWER_SECONDS, START_SECONDS, AirflowServer
from tests.support.ports import free_port

VERSION = "26.7.3"
ARCHIVE = Path(__file__).parents[2] / "build" / "keycloak" / f"keycloak-{VERSION}.tar.gz"
"""Where `make test-keycloak` puts Keycloak."""

_REALM = "airflow"
_CLIENT = "airflow"
_ROLES = ("Viewer", "User", "Op", "Admin", "SuperAdmin")
"""The roles to which the command `create-all` of Airflow's provider gives permissions."""

Permissions = Mapping[str, Sequence[str]]
"""Method, GET or PUT → the DAGs for which a user has it."""


class Keycloak:
    """A server on loopback with a realm for Airflow, and its users.

    `admin` has the role Admin, and the other users have no role.
    """

    def __init__(self, folder: Path, passwords: Mapping[str, str]) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.admin_password = secrets.token_urlsafe(12)
        self.client_secret = secrets.token_urlsafe(12)
        self._folder = folder
        self._passwords = passwords
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Unpack and start the server, and wait until it answers."""
        home = self._folder / f"keycloak-{VERSION}"
        if not home.exists():
            with tarfile.open(ARCHIVE) as files:
                files.extractall(self._folder, filter="data")
            realms = home / "data" / "import"
            realms.mkdir(parents=True)
            (realms / "airflow.json").write_text(json.dumps(self._realm()))
        address = urlsplit(self.url)
        environment = os.environ | {
            "KC_BOOTSTRAP_ADMIN_USERNAME": "root",
            "KC_BOOTSTRAP_ADMIN_PASSWORD": self.admin_password,
            "JAVA_OPTS_APPEND": "-Xmx512m",
        }
        command = [str(home / "bin" / "kc.sh"), "start-dev", "--import-realm"]
        command += ["--http-host", "127.0.0.1", "--http-port", str(address.port)]
        with (self._folder / "keycloak.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            self._wait(self._process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server. `start` starts it again with the same users and permissions."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def permit(self, users: Mapping[str, Permissions]) -> None:
        """Give users permissions for single DAGs, as an administrator does in Keycloak's console.

        A policy for the user and one for the DAG's name must both agree.
        """
        with self._administrator() as admin:
            clients = admin.get("/clients", params={"clientId": _CLIENT}).json()
            server = f"/clients/{clients[0]['id']}/authz/resource-server"
            ids = {user["username"]: user["id"] for user in admin.get("/users").json()}
            for user, permissions in users.items():
                _post(admin, f"{server}/policy/user", name=user, users=[ids[user]])
                for method, dags in permissions.items():
                    name = f"{user} may {method}"
                    _post(
                        admin,
                        f"{server}/policy/regex",
                        name=f"{name} these DAGs",
                        targetClaim="resource_id",
                        targetContextAttributes=True,
                        pattern=f"^({'|'.join(dags)})$",
                    )
                    _post(
                        admin,
                        f"{server}/permission/scope",
                        name=name,
                        resources=["Dag"],
                        scopes=[method],
                        policies=[user, f"{name} these DAGs"],
                        decisionStrategy="UNANIMOUS",
                    )

    @contextlib.contextmanager
    def tokens_expire_after(self, seconds: int) -> Iterator[None]:
        """Let tokens that Keycloak gives within the block expire after some seconds."""
        with self._administrator() as admin:
            usual = admin.get("").json()["accessTokenLifespan"]
            admin.put("", json={"accessTokenLifespan": seconds}).raise_for_status()
            try:
                yield
            finally:
                admin.put("", json={"accessTokenLifespan": usual}).raise_for_status()

    def _administrator(self) -> httpx.Client:
        log_in = {
            "grant_type": "password",
            "client_id": "admin-cli",
            "username": "root",
            "password": self.admin_password,
        }
        answer = httpx.post(
            f"{self.url}/realms/master/protocol/openid-connect/token",
            data=log_in,
            timeout=ANSWER_SECONDS,
        ).raise_for_status()
        return httpx.Client(
            base_url=f"{self.url}/admin/realms/{_REALM}",
            headers={"Authorization": f"Bearer {answer.json()['access_token']}"},
            timeout=ANSWER_SECONDS,
        )

    def _realm(self) -> dict[str, Any]:
        client = {
            "clientId": _CLIENT,
            "secret": self.client_secret,
            "publicClient": False,
            "directAccessGrantsEnabled": True,
            "serviceAccountsEnabled": True,
            "authorizationServicesEnabled": True,
            "redirectUris": ["http://127.0.0.1:*"],
            "authorizationSettings": {"decisionStrategy": "AFFIRMATIVE"},
        }
        users = []
        for name, password in self._passwords.items():
            users.append(
                {
                    "username": name,
                    "enabled": True,
                    "email": f"{name}@example.com",
                    "firstName": name,
                    "lastName": name,
                    "credentials": [{"type": "password", "value": password}],
                    "realmRoles": ["Admin"] if name == "admin" else [],
                }
            )
        roles = {"realm": [{"name": role} for role in _ROLES]}
        return {
            "realm": _REALM,
            "enabled": True,
            "sslRequired": "none",
            "roles": roles,
            "clients": [client],
            "users": users,
        }

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/realms/{_REALM}").is_success:
                    return
            time.sleep(0.5)
        raise RuntimeError((self._folder / "keycloak.log").read_text()[-3000:])


class KeycloakServer(AirflowServer):
    """An Airflow with a user `admin`, and others who have only the given permissions."""

    def __init__(
        self, home: Path, env: Mapping[str, str], users: Mapping[str, Permissions], **others: Any
    ) -> None:
        super().__init__(home, users=dict.fromkeys([*users, "admin"], ""), **others)
        (home / "keycloak").mkdir(parents=True)
        self.keycloak = Keycloak(home / "keycloak", self.passwords)
        self._permissions = users
        manager = "airflow.providers.keycloak.auth_manager.keycloak_auth_manager"
        self._env = dict(env) | {
            "AIRFLOW__CORE__AUTH_MANAGER": f"{manager}.KeycloakAuthManager",
            "AIRFLOW__KEYCLOAK_AUTH_MANAGER__CLIENT_ID": _CLIENT,
            "AIRFLOW__KEYCLOAK_AUTH_MANAGER__CLIENT_SECRET": self.keycloak.client_secret,
            "AIRFLOW__KEYCLOAK_AUTH_MANAGER__REALM": _REALM,
            "AIRFLOW__KEYCLOAK_AUTH_MANAGER__SERVER_URL": self.keycloak.url,
            # Without retries, a test sees at once that Keycloak does not answer.
            "AIRFLOW__KEYCLOAK_AUTH_MANAGER__REQUESTS_RETRIES": "0",
        }

    @override
    def prepare(self) -> None:
        self.run("db", "migrate")
        self.keycloak.start()
        create = ("keycloak-auth-manager", "create-all", "--username", "root")
        self.run(*create, "--password", self.keycloak.admin_password)
        self.keycloak.permit(self._permissions)

    @override
    def stop(self) -> None:
        super().stop()
        self.keycloak.stop()

    @contextlib.contextmanager
    def browser(self, user: str) -> Iterator[httpx.Client]:
        """Yield a client with the cookies of a browser whose user has logged in on Keycloak's page."""
        with httpx.Client(
            base_url=self.url, follow_redirects=True, timeout=ANSWER_SECONDS
        ) as client:
            page = client.get("/auth/login").raise_for_status()
            for cookie in client.cookies.jar:
                # Browsers send cookies that are only for HTTPS also to loopback; httpx does not.
                cookie.secure = False
            form = re.search('<form [^>]*action="([^"]+)"', page.text)
            assert form is not None, page.text
            log_in = {"username": user, "password": self.passwords[user]}
            client.post(html.unescape(form[1]), data=log_in).raise_for_status()
            yield client


def _post(client: httpx.Client, path: str, **sent: Any) -> None:
    client.post(path, json=sent).raise_for_status()


def _fetch() -> None:
    """Download Keycloak."""
    archive = Module("org.keycloak", "keycloak-quarkus-dist", VERSION, extension="tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        fetched = fetch(find_java().path, [archive], Path(folder) / "ivy", transitive=False)
        shutil.move(fetched[archive], ARCHIVE)


if __name__ == "__main__":
    _fetch()
