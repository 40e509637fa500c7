"""A PostgreSQL server for tests: Debian's binaries, on loopback, with all files in one temporary folder."""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy import make_url

from sluice.state.ledger.ledger import Ledger
from tests.support.ports import free_port

_USER = "sluice"
_NUMBERS = itertools.count()
_FILES = "sluice-tests-postgres-"
"""The names of the servers' folders begin with this, and with the process id of their tests."""


def new_database(server: str) -> str:
    """URL of a new, empty database of a server."""
    name = f"state_{next(_NUMBERS)}"
    _execute(server, f"CREATE DATABASE {name} STRATEGY FILE_COPY")
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def database_with_ledger(server: str) -> str:
    """URL of a new database of a server, with an empty ledger, whose tables are copied from another database."""
    name = f"state_{next(_NUMBERS)}"
    _execute(server, f"CREATE DATABASE {name} TEMPLATE {_template(server)} STRATEGY FILE_COPY")
    return make_url(server).set(database=name).render_as_string(hide_password=False)


@cache
def _template(server: str) -> str | None:
    """The name of the server's database that `database_with_ledger` copies."""
    url = new_database(server)
    Ledger.open(url).close()
    return make_url(url).database


def _execute(server: str, statement: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(statement.encode())


@contextmanager
def postgres_server(
    folder: Path,
    port: int | None = None,
    password: str = "",
    certificate: Path | None = None,
    host: str = "127.0.0.1",
) -> Iterator[str]:
    """Start a server; yields the URL of a database, which is empty unless a server with this `folder` was there before.

    With a password, the server requires it. With a certificate, a PEM file that also contains its
    key, the server requires TLS. Skips the test if PostgreSQL is not installed.
    """
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's server is not installed (apt-get install postgresql)")
    folder = _files_of(folder)
    data, log, port = folder / "data", folder / "log", port or free_port()
    as_user = _unprivileged(folder)
    initdb = [*as_user, str(binaries / "initdb"), "-D", str(data), "-U", _USER, "-E", "UTF8", "-N"]
    (folder / "password").write_text(password)
    initdb += (
        ["-A", "scram-sha-256", "--pwfile", str(folder / "password")]
        if password
        else ["-A", "trust"]
    )
    url = f"postgresql://{_USER}{f':{quote(password, safe=str())}' if password else ''}@{host}:{port}/postgres"
    if not data.exists():
        made = subprocess.run(initdb, capture_output=True, text=True)
        if made.returncode:
            raise RuntimeError(f"PostgreSQL's folder was not made: {made.stderr}")
    options = ["-k", "", "-h", host, "-p", str(port), "-c", "max_connections=200"]
    if host != "127.0.0.1":
        with (data / "pg_hba.conf").open("a") as access_file:
            access_file.write(f"host all all {host}/16 trust\n")
    if certificate is not None:
        own = folder / "certificate.pem"
        own.touch(mode=0o600)
        own.write_text(certificate.read_text())
        os.chown(own, folder.stat().st_uid, folder.stat().st_gid)
        options += ["-c", "ssl=on", "-c", f"ssl_cert_file={own}", "-c", f"ssl_key_file={own}"]
        access = data / "pg_hba.conf"
        access.write_text(access.read_text().replace("\nhost ", "\nhostssl "))
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*as_user, str(binaries / "postgres"), "-D", str(data), *options],
            stdout=output,
            stderr=output,
        )
    try:
        _wait(server, url, log)
        yield url
    finally:
        # Signal the process id that the server wrote: the started process may be a wrapper that
        # changes the user.
        os.kill(int((data / "postmaster.pid").read_text().split()[0]), 2)
        server.wait(60)


@contextmanager
def frozen(url: str) -> Iterator[None]:
    """Freeze all processes of a server within the block. Its kernel still accepts connections and acknowledges data."""
    with psycopg.connect(url) as connection:
        folder = connection.execute("SHOW data_directory").fetchone()
    assert folder is not None
    postmaster = int((Path(folder[0]) / "postmaster.pid").read_text().split()[0])
    processes = [postmaster]
    os.kill(postmaster, signal.SIGSTOP)  # first, so that it starts no more processes
    try:
        for child in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split():
            os.kill(int(child), signal.SIGSTOP)
            processes.append(int(child))
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def postgres_binaries() -> Path:
    """The folder of PostgreSQL's programs. Skips the test if they are not installed."""
    binaries = _binaries()
    if binaries is None or not (binaries / "pg_receivewal").exists():
        pytest.skip("PostgreSQL's programs are not installed (apt-get install postgresql)")
    return binaries


def _binaries() -> Path | None:
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


def _files_of(folder: Path) -> Path:
    """The folder with the files of a server; `folder` has a link to it.

    It is not in pytest's temporary folder: when another pytest starts, it closes all of these to
    other users, and a server that runs as one of them ends.
    """
    link = folder / "server"
    if not link.exists():
        for left in Path(tempfile.gettempdir()).glob(f"{_FILES}*"):  # by processes that were killed
            if not Path("/proc", left.name.removeprefix(_FILES).partition("-")[0]).exists():
                shutil.rmtree(left, ignore_errors=True)
        files = tempfile.mkdtemp(prefix=f"{_FILES}{os.getpid()}-")
        atexit.register(shutil.rmtree, files, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        link.symlink_to(files)
    return link.resolve()


def _unprivileged(folder: Path) -> list[str]:
    """The command that runs a program as `postgres`, which also gets the folder. PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    account = pwd.getpwnam("postgres")
    os.chown(folder, account.pw_uid, account.pw_gid)
    for parent in folder.parents:  # other users cannot enter pytest's own temporary folders
        if parent.stat().st_uid == 0 and parent != Path("/") and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.poll() is None:
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            time.sleep(0.05)
    raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()[-2000:]}")
