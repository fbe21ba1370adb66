"""Figures for Prometheus, in its text format (https://prometheus.io/docs/instrumenting/exposition_formats/)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Counter:
    """A number that only grows, for each set of labels."""

    kind = "counter"

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        self.name, self.meaning = name, meaning
        self._labels = labels
        self._lock = threading.Lock()
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}

    def add(self, amount: float, *values: str) -> None:
        with self._lock:
            self._values[values] = self._values.get(values, 0) + amount

    def lines(self) -> Iterator[str]:
        for values, number in sorted(self._values.copy().items()):
            yield f"{self.name}{_labelled(dict(zip(self._labels, values, strict=True)))} {number:.16g}"


class Histogram:
    """How often something took at most so many seconds."""

    kind = "histogram"

    def __init__(self, name: str, meaning: str) -> None:
        self.name, self.meaning = name, meaning
        self._lock = threading.Lock()
        self._counts = [0] * len(SECONDS)
        self._count = 0
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        with self._lock:
            for index, bound in enumerate(SECONDS):
                self._counts[index] += seconds <= bound
            self._count += 1
            self._sum += seconds

    def lines(self) -> Iterator[str]:
        for bound, count in zip(SECONDS, self._counts, strict=True):
            yield f"{self.name}_bucket{_labelled({'le': f'{bound:g}'})} {count}"
        yield f"{self.name}_bucket{_labelled({'le': '+Inf'})} {self._count}"
        yield f"{self.name}_sum {self._sum:.6f}"
        yield f"{self.name}_count {self._count}"


class Metrics:
    """What the server counts."""

    def __init__(self) -> None:
        self.requests = Counter("edgelm_requests_total", "Requests answered.", "path", "status")
        self.first_token_seconds = Histogram(
            "edgelm_time_to_first_token_seconds", "From a request's arrival at the engine to its first token."
        )
        self.request_seconds = Histogram(
            "edgelm_request_seconds", "From a request's arrival to its answer's end."
        )

    def text(self, engine: Mapping[str, tuple[str, int]]) -> str:
        """All figures, with those of the `engine`: name to (meaning, number)."""
        lines: list[str] = []
        for metric in vars(self).values():
            lines += [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}"]
            lines += metric.lines()
        for name, (meaning, number) in engine.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {number}"]
        return "\n".join(lines) + "\n"


def _labelled(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""
