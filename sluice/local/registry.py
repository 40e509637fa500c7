"""A schema registry as one local process with its schemas in memory, for tests and demos.

It is Apicurio Registry, which also has Confluent's API.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from sluice.errors import PreflightError
from sluice.local.service import Service
from sluice.local.service import stop as stop_services
from sluice.provision import jars
from sluice.provision.jars import Bundle
from sluice.provision.machine_checks import LOOPBACK, find_java, free_port
from sluice.settings import settings
from sluice.support.tar_archives import unpack

_START_SECONDS = 180.0
_JVM = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


class LocalRegistry:
    """A schema registry that runs during a `with` block.

    If it is stopped and started again, it has no schemas. `config` has more of the registry's
    settings.
    """

    def __init__(
        self, folder: Path, port: int | None = None, config: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.url = f"http://{LOOPBACK}:{self.port}/apis/ccompat/v7"
        self._config = config or {}
        self._service: Service | None = None

    def start(self) -> None:
        """Start the registry, and wait until it answers.

        If the registry's archive is missing, download it first. Raises PreflightError.
        """
        java = find_java().path
        app = _unpacked(java)
        (runner,) = app.glob("*-runner.jar")
        options = {"quarkus.http.host": LOOPBACK, "quarkus.http.port": str(self.port)}
        options |= self._config
        command = [str(java), *_JVM]
        command += [f"-D{name}={value}" for name, value in options.items()]
        command += ["-jar", str(runner)]
        log = self.folder / "registry.log"
        self._service = Service.start("The schema registry", command, os.environ, log)
        until = time.monotonic() + _START_SECONDS
        while not self._answers():
            self._service.check()
            if time.monotonic() > until:
                self.stop()
                raise PreflightError(
                    f"The schema registry did not answer within {_START_SECONDS:.0f} s.",
                    next_step=f"See its log: {log}.",
                )
            time.sleep(0.2)

    def kill(self) -> None:
        """End the registry at once, as a crash does."""
        if self._service is not None:
            self._service.process.send_signal(signal.SIGKILL)
            self._service.process.wait()

    def stop(self) -> None:
        if self._service is not None:
            stop_services([self._service])
            self._service = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5):
                return True
        except urllib.error.HTTPError as error:
            return error.code in (401, 403)
        except OSError:
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _unpacked(java: Path) -> Path:
    """Return the folder of the registry's program."""
    root = settings().jars
    jars.provide(root, java, bundles=[Bundle.REGISTRY])
    folder = jars.folder(Bundle.REGISTRY, root)
    app = folder / "app"
    if not app.is_dir():
        (archive,) = folder.glob("*.tar.gz")
        # Another process may unpack the archive at the same time.
        work = Path(tempfile.mkdtemp(prefix=".unpack-", dir=folder))
        unpack(archive, work)
        try:
            work.rename(app)
        except OSError:
            shutil.rmtree(work, ignore_errors=True)
    return app
