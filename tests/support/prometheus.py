"""Debian's Prometheus and promtool, for tests of metrics, rules and alerts."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.ports import free_port

RULES = Path(__file__).parents[2] / "sluice" / "observe" / "prometheus" / "sluice.rules.yml"


def promtool(*arguments: str, text: str = "") -> str:
    """What promtool prints.

    Fails the test if it reports a mistake, and skips it if promtool is not installed.
    """
    done = subprocess.run(
        [_program("promtool"), *arguments],
        input=text,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


QUICK = {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"}


def scrape_seconds(page: str) -> dict[str, str]:
    """How often Prometheus scrapes and evaluates its rules, in the configuration that a page shows."""
    (configuration,) = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    seconds: dict[str, str] = yaml.safe_load(configuration)["global"]
    return seconds


@contextmanager
def prometheus(
    folder: Path, target: str, token: str, seconds: Mapping[str, str] = QUICK
) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes a state server, as often as `seconds` says.

    Yields a client of its API.
    """
    program, address = _program("prometheus"), f"127.0.0.1:{free_port()}"
    scrape: dict[str, Any] = {
        "job_name": "sluice",
        "authorization": {"credentials": token},
        "static_configs": [{"targets": [target]}],
    }
    configuration = {
        "global": dict(seconds),
        "scrape_configs": [scrape],
        "rule_files": [str(RULES)],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration))
    options = {
        "config.file": file,
        "storage.tsdb.path": folder / "data",
        "web.listen-address": address,
        "log.level": "error",
    }
    command = [program, *(f"--{name}={value}" for name, value in options.items())]
    with subprocess.Popen(command) as process:
        try:
            with httpx.Client(base_url=f"http://{address}", timeout=10, trust_env=False) as client:
                yield client
        finally:
            process.terminate()


def _program(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed (apt-get install prometheus)")
    return program
