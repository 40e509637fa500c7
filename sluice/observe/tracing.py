"""OpenTelemetry traces: a span for each run, its batches and their phases.

A driver sends spans if `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is
set, as OpenTelemetry defines these variables. Airflow's operator passes the span of its task to the
driver in `TRACEPARENT`. OpenTelemetry, which Airflow depends on, is imported only to send spans.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

import structlog

from sluice.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

log = structlog.get_logger()

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_CONTEXT = ("traceparent", "tracestate")
"""The names that W3C gives to a trace's context. Environment variables have these names in
capitals."""
_FLUSH_SECONDS = 5.0
"""A run waits no longer than this for a collector that does not answer."""
_MILLISECOND = 1_000_000
"""A millisecond in ns, OpenTelemetry's unit of time."""

_tracers: list[Tracer] = []
"""The tracer of this process's run; empty if the run is not traced."""


def trace_context() -> dict[str, str]:
    """Return environment variables that make the current span the parent of a driver's run.

    Return an empty dict if there is no current span.
    """
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}


@contextmanager
def traced_run(pipeline: str, run: str) -> Iterator[None]:
    """Trace the run in the block. `run` is its name in Airflow; empty if it runs without Airflow.

    A collector that does not answer, or a missing package, does not affect the run.
    """
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        yield
        return
    try:
        provider = _provider()
    except ImportError as error:
        log.warning("no traces", why=f"{error}. Install opentelemetry-exporter-otlp.")
        yield
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    for name in _CONTEXT:
        if name.upper() in os.environ:
            carrier[name] = os.environ[name.upper()]
    parent = TraceContextTextMapPropagator().extract(carrier)
    tracer = provider.get_tracer("sluice", __version__)
    attributes = {"sluice.pipeline": pipeline, "sluice.run": run}
    _tracers.append(tracer)
    try:
        # An error that ends the block becomes an event of the span, and sets the span's status.
        with tracer.start_as_current_span(f"run {pipeline}", context=parent, attributes=attributes):
            yield
    finally:
        _tracers.clear()
        # `shutdown` sends the last spans, and waits for the collector. It runs in a daemon thread,
        # so that the process can end although the collector does not answer.
        flushing = Thread(target=provider.shutdown, daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)


def trace_batch(batch: str, phases_ms: Mapping[str, int], counts: Mapping[str, int]) -> None:
    """Add spans of a batch that has just been published, and of its phases, to the run's trace."""
    if not _tracers:
        return
    from opentelemetry.trace import set_span_in_context

    (tracer,) = _tracers
    end = time.time_ns()
    begin = end - sum(phases_ms.values()) * _MILLISECOND
    attributes = {f"sluice.{name}": counts.get(name, 0) for name in ("read", "applied", "rows")}
    batch_span = tracer.start_span(f"batch {batch}", start_time=begin, attributes=attributes)
    for name, milliseconds in phases_ms.items():
        phase = tracer.start_span(name, context=set_span_in_context(batch_span), start_time=begin)
        begin += milliseconds * _MILLISECOND
        phase.end(begin)
    batch_span.end(end)


def _provider() -> TracerProvider:
    """Return a provider that sends spans to the endpoint.

    Raises ImportError if a package is missing.
    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

    exporter: SpanExporter
    if os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as OverGrpc,
        )

        exporter = OverGrpc()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter as OverHttp,
        )

        exporter = OverHttp()
    # OpenTelemetry takes the name from OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES. A name that
    # is passed to `create` would replace the name from OTEL_RESOURCE_ATTRIBUTES.
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "sluice"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
