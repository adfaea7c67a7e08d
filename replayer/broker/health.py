"""Metrics and health of a broker over HTTP."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from replayer.broker.connections import BrokerServer
from replayer.broker.fetch import FetchState
from replayer.broker.messages import NAMES
from replayer.broker.partition_logs import Logs

PREFIX = "blockgz_broker_"


class BrokerCollector(Collector):
    """The broker's metrics, read at each scrape."""

    def __init__(self, logs: Logs, reading: FetchState, server: BrokerServer) -> None:
        self._logs = logs
        self._reading = reading
        self._server = server

    def collect(self) -> Iterator[Metric]:
        counts, blocks = self._reading.counts, self._reading.blocks
        requests = CounterMetricFamily(f"{PREFIX}requests", "Requests of clients", labels=["request"])
        for key, name in NAMES.items():
            requests.add_metric([name], counts[f"request {key}"])
        yield requests
        for name, count, text in (
            ("sent_bytes", counts["bytes sent"], "Bytes sent to clients"),
            ("gaps", counts["gap"], "Gaps of the archive that clients came to"),
            ("damaged_reads", counts["damage"], "Reads that met damage"),
            ("failed_reads", counts["error"], "Reads that failed, and may work later"),
            ("clients_at_the_end", counts["began at the end"], "Partitions that clients began to read at their end"),
            ("cache_hits", blocks.counts["hits"], "Blocks that were encoded already"),
            ("cache_misses", blocks.counts["misses"], "Blocks that were read for a client"),
        ):
            yield CounterMetricFamily(PREFIX + name, text, count)
        yield GaugeMetricFamily(f"{PREFIX}connections", "Open connections", self._server.connections)
        yield GaugeMetricFamily(f"{PREFIX}cache_bytes", "Bytes of record batches kept", blocks.kept_bytes)
        ends = GaugeMetricFamily(f"{PREFIX}end_offset", "Archived up to here", labels=["topic", "partition"])
        for log, partition in self._logs.opened():
            ends.add_metric([log.topic, str(log.number)], partition.next_offset)
        yield ends

    def describe(self) -> Iterable[Metric]:
        """Return no names to compare at registration: the registry holds nothing else of ours."""
        return ()


class _Quiet(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def health_served(
    listening: socket.socket | None, collector: Collector, trouble: Callable[[], str]
) -> AsyncIterator[None]:
    """Answer /metrics, /healthz and /readyz within the block; `trouble` says why the broker is not ready."""
    if listening is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def alive(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_: Request) -> Response:
        why = trouble()
        return PlainTextResponse(f"{why or 'ok'}\n", status_code=503 if why else 200)

    routes = [Route("/metrics", metrics), Route("/healthz", alive), Route("/readyz", ready)]
    config = uvicorn.Config(Starlette(routes=routes), log_level="error", access_log=False, lifespan="off", ws="none")
    server = _Quiet(config)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving
