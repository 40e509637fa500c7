"""A run's trace reaches an OpenTelemetry collector, with the span of Airflow's task as its parent."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from sluice.errors import EngineError
from sluice.observe import tracing
from sluice.observe.tracing import trace_batch, traced_run
from tests.support.ports import free_port

TRACE, TASK = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PHASES = {"start": 1_000, "state": 2_500, "audit": 250, "output": 250}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Span]]:
    """The spans that a collector has got, by name."""
    received: dict[str, Span] = {}

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest.FromString(
                self.rfile.read(int(self.headers["Content-Length"]))
            )
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    received.update({span.name: span for span in scope.spans})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    serving = Thread(target=server.serve_forever)
    serving.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    monkeypatch.setattr(tracing, "_FLUSH_SECONDS", 60.0)
    yield received
    server.shutdown()
    server.server_close()
    serving.join()


def test_a_run_with_its_batches_and_phases_belongs_to_airflows_task(
    spans: dict[str, Span], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{TASK}-01")
    with traced_run("orders", "orders/manual__1/main"):
        trace_batch("1.42", PHASES, {"read": 10, "applied": 9, "rows": 3})
    assert {*spans} == {"run orders", "batch 1.42", *PHASES}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    run, batch = spans["run orders"], spans["batch 1.42"]
    assert run.parent_span_id.hex() == TASK
    assert batch.parent_span_id == run.span_id
    assert {spans[phase].parent_span_id for phase in PHASES} == {batch.span_id}
    assert batch.end_time_unix_nano - batch.start_time_unix_nano == 4_000_000_000
    state = spans["state"]
    assert state.start_time_unix_nano == spans["start"].end_time_unix_nano
    assert state.end_time_unix_nano - state.start_time_unix_nano == 2_500_000_000
    assert {each.key: each.value.int_value for each in batch.attributes}["sluice.read"] == 10


def test_the_error_of_a_run_is_in_its_span(spans: dict[str, Span]) -> None:
    with pytest.raises(EngineError), traced_run("orders", ""):
        raise EngineError("Kafka is away.")
    assert spans["run orders"].status.code == Status.STATUS_CODE_ERROR
    assert "Kafka is away." in spans["run orders"].status.message
    # A batch of a later run, which is not traced.
    trace_batch("1.43", PHASES, {})
    assert {*spans} == {"run orders"}


def test_a_collector_that_is_away_does_not_affect_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(tracing, "_FLUSH_SECONDS", 0.1)
    with traced_run("orders", ""):
        trace_batch("1.42", PHASES, {})


def test_without_an_endpoint_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_provider", lambda: pytest.fail("a provider was made"))
    with traced_run("orders", ""):
        trace_batch("1.42", PHASES, {})


@pytest.mark.parametrize(
    ("variable", "value", "name"),
    [
        ("", "", "sluice"),
        ("OTEL_SERVICE_NAME", "shop", "shop"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=shop", "shop"),
    ],
)
def test_the_service_is_named_sluice_or_as_opentelemetrys_variables_say(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, name: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    if variable:
        monkeypatch.setenv(variable, value)
    provider = tracing._provider()
    assert provider.resource.attributes["service.name"] == name
    provider.shutdown()
