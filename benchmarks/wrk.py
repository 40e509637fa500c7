"""Measures a server with wrk."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

SCRIPT = """local paths = {}
for line in io.lines(os.getenv("PATHS")) do paths[#paths + 1] = line end
math.randomseed(7)
local headers = {["Authorization"] = os.getenv("AUTHORIZATION")}
request = function() return wrk.format("GET", paths[math.random(#paths)], headers) end
done = function(summary, latency, requests)
  local wrong = summary.errors
  io.write(string.format('{"req_s":%.0f,"p50_ms":%.3f,"p99_ms":%.3f,"requests":%d,"bad":%d}\\n',
    summary.requests / (summary.duration / 1e6), latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    summary.requests, wrong.status + wrong.connect + wrong.read + wrong.write + wrong.timeout))
end
"""


@dataclass(frozen=True)
class Case:
    """A server and the requests to send to it."""

    name: str
    address: str
    paths: Sequence[str]
    authorization: str = ""
    pids: Sequence[int] = ()
    """The processes that answer."""


@dataclass(frozen=True)
class Result:
    """One measurement, or the medians of several."""

    req_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """CPU time per request of the processes that answer, in microseconds."""


def measure(home: Path, case: Case, connections: int, seconds: int) -> Result:
    """Send requests for `seconds` over concurrent connections. Raises SystemExit if any answer is not 200."""
    (home / "paths").write_text("\n".join(case.paths))
    (home / "wrk.lua").write_text(SCRIPT)
    # The first request to a process may take seconds, because the process then loads the custom
    # routes.
    options = f"-t1 -c{connections} -d{seconds}s --timeout 30s".split()
    command = ["wrk", *options, "-s", str(home / "wrk.lua"), case.address]
    variables = os.environ | {"PATHS": str(home / "paths"), "AUTHORIZATION": case.authorization}
    before = _cpu(case.pids)
    output = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True
    ).stdout
    used = _cpu(case.pids) - before
    report: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    if report["bad"]:
        raise SystemExit(
            f"{case.name}: {report['bad']} of {report['requests']} answers were wrong."
        )
    return Result(
        report["req_s"], report["p50_ms"], report["p99_ms"], used / max(report["requests"], 1) * 1e6
    )


def median(results: Sequence[Result]) -> Result:
    """The median of each figure."""
    return Result(
        *(
            statistics.median(getattr(result, name) for result in results)
            for name in Result.__dataclass_fields__
        )
    )


def _cpu(pids: Sequence[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)
