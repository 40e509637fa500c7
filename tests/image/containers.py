"""The image, and the services that docker/compose.yaml starts from it. Run by `make test-image`.

Not part of `make test`, because it takes a quarter of an hour and downloads a gigabyte.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from sluice.examples.orders.expected_totals import Totals
from sluice.kafka.topics import read_topic
from tests.image.composition import LASTING, SERVICES, Composition, composition
from tests.image.engine import IMAGE, ROOT, Engine, engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5_400)]

_STORE = "general_orders_count"


@pytest.fixture(scope="module")
def made() -> Iterator[Engine]:
    with engine(ROOT / "build/image") as found:
        yield found


@pytest.fixture(scope="module")
def composed(made: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    with composition(made, tmp_path_factory.mktemp("compose")) as started:
        started.wait_until_healthy()
        yield started


def _in_image(made: Engine, script: str) -> list[str]:
    return made.run("run", "--rm", "--network", "none", IMAGE, "sh", "-c", script).splitlines()


def test_the_image_runs_as_a_user_who_cannot_change_its_code(made: Engine) -> None:
    assert _in_image(made, "id -un") == ["sluice"]
    writable = _in_image(
        made, "find /opt /usr /etc -xdev -writable -not -type l 2>/dev/null || true"
    )
    assert writable == ["/opt/sluice/jars"], (
        "the archive of Java classes is the only file that a run adds"
    )


def test_the_image_has_one_copy_of_sluice_and_its_commands(made: Engine) -> None:
    (path,) = _in_image(made, "python3 -c 'import sluice; print(sluice.__file__)'")
    assert path == "/usr/local/lib/python3.11/site-packages/sluice/__init__.py"
    assert sorted(_in_image(made, "ls /opt/sluice")) == [
        "LICENSE", "README.md", "dags", "jars", "plugins", "probe.py", "pyproject.toml", "requirements.txt",
        "spark_jobs",
    ]  # fmt: skip
    assert "count" in "".join(_in_image(made, "sluice describe words"))
    assert "--rest" in "".join(_in_image(made, "sluice serve --help"))


def test_the_image_contains_no_secret(made: Engine) -> None:
    variables = dict(line.split("=", 1) for line in made.inspect(IMAGE)["Config"]["Env"])
    assert not [
        name
        for name in variables
        if any(word in name for word in ("SECRET", "PASSWORD", "TOKEN", "FERNET"))
    ]
    assert (
        _in_image(
            made,
            "find / -xdev \\( -name '.env*' -o -name .git -o -name 'id_rsa*' \\) 2>/dev/null || true",
        )
        == []
    )


def test_orders_run_on_the_containers_spark(composed: Composition) -> None:
    with composed.airflow() as airflow:
        assert airflow.get("/api/v2/importErrors").json()["total_entries"] == 0
        composed.process_orders(2_000, airflow)
        _compare(composed, airflow)
        anonymous = httpx.get(f"{airflow.base_url}/sluice/v1/stores/{_STORE}", timeout=60)
        assert anonymous.status_code == httpx.codes.UNAUTHORIZED
    worker = httpx.get(
        f"http://127.0.0.1:{composed.values['SPARK_WORKER_UI_PORT']}/json/", timeout=60
    ).json()
    assert [executor["appdesc"]["name"] for executor in worker["finishedexecutors"]] == [
        "sluice orders"
    ]
    archives = composed.engine.run(
        "exec",
        composed.container("airflow-scheduler"),
        "find",
        "/opt/sluice/jars",
        "-name",
        "*.jsa",
    )
    assert len(archives.split()) == 1, (
        "the first run writes an archive of Java classes for the later ones"
    )


def test_every_process_runs_as_a_user_and_below_an_init(composed: Composition) -> None:
    for service in LASTING:
        if "build" in SERVICES[service]:
            ids = composed.engine.run(
                "exec", composed.container(service), "ps", "-eo", "user=,pid=,comm="
            )
            processes = [line.split(maxsplit=2) for line in ids.splitlines()]
            assert {user for user, _, _ in processes} == {"sluice"}
            assert processes[0][1] == "1"
            assert "init" in processes[0][2]


def test_a_health_check_fails_while_its_service_does_not_work(composed: Composition) -> None:
    composed.compose("stop", "spark-worker")
    assert not composed.works("spark-worker")
    composed.compose("start", "spark-worker")

    composed.compose("stop", "spark-master")
    assert not composed.works("spark-master")
    assert not composed.works("spark-worker"), "a worker without a master runs nothing"
    composed.compose("start", "spark-master")

    composed.compose("stop", "postgres")
    assert not composed.works("airflow-api-server"), "Airflow cannot answer without its database"
    composed.compose("start", "postgres")

    composed.compose("stop", "airflow-triggerer")
    time.sleep(40)  # a component counts as alive for 30 s after its last report
    assert not composed.works("airflow-triggerer")
    assert composed.works("airflow-scheduler")
    composed.compose("start", "airflow-triggerer")
    composed.wait_until_healthy()


@pytest.mark.parametrize("service", LASTING)
def test_each_service_ends_when_it_is_asked_to(composed: Composition, service: str) -> None:
    composed.compose("stop", service)
    status = composed.status(service)
    composed.compose("start", service)
    # 143 is the end that SIGTERM asks for; a container that has not ended in time is killed, with
    # 137.
    assert status["ExitCode"] in (0, 143), composed.logs(service)


def test_orders_run_after_every_service_was_restarted(composed: Composition) -> None:
    composed.wait_until_healthy()
    with composed.airflow() as airflow:
        composed.process_orders(1_000, airflow)
        _compare(composed, airflow)


def _compare(composed: Composition, airflow: httpx.Client) -> None:
    """Compare the store that REST answers with what the topic contains, read at the port that Kafka publishes."""
    totals = Totals()
    for message in read_topic(
        {"bootstrap.servers": f"127.0.0.1:{composed.values['KAFKA_PORT']}"}, "orders"
    ):
        totals.add(message.value(), message.partition() or 0, int(time.time() * 1_000))
    answer = (
        airflow.get(f"/sluice/v1/stores/{_STORE}", params={"limit": 1_000})
        .raise_for_status()
        .json()
    )
    assert {entry["key"]: entry["value"] for entry in answer["entries"]} == totals.stores()[_STORE]
