"""A real Airflow for tests: its own home, SQLite, loopback only. Its processes end with the `with` block."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import httpx

from tests.support.airflow_database import provide_database
from tests.support.ports import free_port

START_SECONDS = 250.0
ANSWER_SECONDS = 120.0
"""On a busy machine, Airflow needs many times as long as on a quiet one."""
DATABASE_URL = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
JWT_SECRET = "tests" * 16


class AirflowServer:
    """Airflow's processes, started with `airflow COMPONENT`; the component `standalone` starts all others.

    `users`: names of log-ins of the SimpleAuthManager, with their roles. Each user gets a random
    password.
    """

    def __init__(
        self,
        home: Path,
        port: int | None = None,
        *,
        components: Sequence[str] = ("api-server",),
        dags_folder: Path | None = None,
        plugins_folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.components = components
        self._users = dict(users or {"admin": "admin", "viewer": "viewer"})
        self.passwords = {name: secrets.token_urlsafe(12) for name in self._users}
        self._folders = {
            "DAGS_FOLDER": dags_folder or home / "dags",
            "PLUGINS_FOLDER": plugins_folder or home / "plugins",
        }
        self._env = dict(env or {})
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> AirflowServer:
        self.home.mkdir(parents=True, exist_ok=True)
        for folder in self._folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        self._password_file.write_text(json.dumps(self.passwords))
        try:
            self.prepare()
            for component in self.components:
                self._processes.append(self._start(component))
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def prepare(self) -> None:
        """Create the database, before the processes start."""
        if DATABASE_URL in self._env:
            self.run("db", "migrate")
        else:
            provide_database(self.home / "airflow.db")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of Airflow's processes. It contains none of the caller's AIRFLOW settings."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW", "SLUICE_"))
        }
        bin_folder = str(Path(sys.executable).parent)
        return (
            inherited
            | {f"AIRFLOW__CORE__{name}": str(folder) for name, folder in self._folders.items()}
            | {
                "PATH": f"{bin_folder}{os.pathsep}{inherited.get('PATH', '')}",
                "AIRFLOW_HOME": str(self.home),
                "AIRFLOW__API__HOST": "127.0.0.1",
                "AIRFLOW__API__PORT": str(self.port),
                "AIRFLOW__API__BASE_URL": self.url,
                "AIRFLOW__API__SECRET_KEY": "tests",
                "AIRFLOW__API__WORKERS": "1",
                "AIRFLOW__API_AUTH__JWT_SECRET": JWT_SECRET,
                "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "AIRFLOW__CORE__PARALLELISM": "4",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                    f"{n}:{role}" for n, role in self._users.items()
                ),
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._password_file),
                DATABASE_URL: f"sqlite:///{self.home}/airflow.db",
            }
            | self._env
        )

    def token(self, user: str = "admin") -> str:
        """Log in and return the token for `Authorization: Bearer`."""
        sent = {"username": user, "password": self.passwords[user]}
        answer = httpx.post(
            f"{self.url}/auth/token", json=sent, timeout=ANSWER_SECONDS
        ).raise_for_status()
        return str(answer.json()["access_token"])

    def client(self, user: str | None = "admin") -> httpx.Client:
        """A client of the server, logged in as `user`; not logged in if `user` is None."""
        headers = {"Authorization": f"Bearer {self.token(user)}"} if user else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=ANSWER_SECONDS)

    @property
    def pids(self) -> list[int]:
        """The started processes; each may have children."""
        return [process.pid for process in self._processes]

    def log(self) -> str:
        """All output of the processes so far."""
        return "".join(file.read_text(errors="replace") for file in sorted(self.home.glob("*.log")))

    def stop(self) -> None:
        """Stop all started processes and their children. Each started process leads its own process group."""
        for process in self._processes:
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + 15
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            _signal(process, signal.SIGKILL)  # children may outlive their parent
            process.wait()
        self._processes.clear()

    @property
    def _password_file(self) -> Path:
        return self.home / "passwords.json"

    def run(self, *arguments: str) -> None:
        """Run a command of Airflow until it ends. Raises CalledProcessError if it fails."""
        with self._log("-".join(arguments)) as output:
            subprocess.run(
                self._command(*arguments),
                env=self.environment,
                stdout=output,
                stderr=output,
                check=True,
            )

    def _start(self, component: str) -> subprocess.Popen[bytes]:
        with self._log(component) as output:
            return subprocess.Popen(
                self._command(component),
                env=self.environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "airflow", *arguments]

    def _log(self, name: str) -> IO[bytes]:
        return (self.home / f"{name}.log").open("ab")

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        with httpx.Client(timeout=2, trust_env=False) as client:
            while time.monotonic() < deadline:
                if any(process.poll() is not None for process in self._processes):
                    break
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"{self.url}/api/v2/version").status_code == httpx.codes.OK:
                        return
                time.sleep(0.2)
        raise RuntimeError(f"Airflow did not start:\n{self.log()[-4_000:]}")


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
