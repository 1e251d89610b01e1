"""Metrics of the service, for Prometheus."""

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

if TYPE_CHECKING:
    from prism.recommend.serve.engine import Engine

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class Measures:
    """Counters of one service, in a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # when each counter was made: a third of the text, and nobody's question
        self.registry = CollectorRegistry()
        self.events = Counter("prism_events", "New events on the disk", registry=self.registry)
        self.requests = Counter("prism_requests", "Requests", ["method", "path", "status"], registry=self.registry)
        self.seconds = Histogram(
            "prism_request_seconds", "Time to answer", ["path"], buckets=SECONDS, registry=self.registry
        )
        names = {
            "prism_users_in_memory": "Users whose state is in memory",
            "prism_state_bytes": "Memory of the states",
            "prism_waiting_requests": "Requests in the line",
            "prism_rebuilt_states": "States built from all events for want of a snapshot",
            "prism_store_failing": "1 while the store does not take writes",
        }
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self.gauges = {name: Gauge(name, about, registry=self.registry) for name, about in names.items()}

    def request(self, method: str, path: str, status: int, seconds: float) -> None:
        key = (method, path, status)
        if key not in self._children:
            self._children[key] = (self.requests.labels(*key), self.seconds.labels(path))
        counter, histogram = self._children[key]
        counter.inc()
        histogram.observe(seconds)

    def text(self, engine: "Engine") -> bytes:
        """All of it, as Prometheus reads it."""
        now = (len(engine.pool), engine.pool.nbytes, engine.waiting, engine.rebuilt, int(engine.failure is not None))
        for gauge, value in zip(self.gauges.values(), now, strict=True):
            gauge.set(value)
        return generate_latest(self.registry)  # type: ignore[no-any-return]
