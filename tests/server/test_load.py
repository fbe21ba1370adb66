"""The load test of tests/benchmarks/serve_load.py, for a few seconds."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    import serve_load
finally:
    sys.path.remove(str(BENCHMARKS))

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")


def test_callers_who_behave_badly() -> None:
    process, port = serve_load.start("--queue", "16")
    log: list[str] = []
    reader = threading.Thread(target=lambda: log.append(process.stderr.read()))  # type: ignore[union-attr]
    reader.start()
    try:
        report = asyncio.run(serve_load.burden(port, process.pid, callers=32, seconds=5))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        reader.join()
    assert not report.wrong and not report.held
    assert report.statuses[200] and report.statuses[400] and sum(report.acts.values()) > 50
    assert report.memory_late < report.memory_early * 1.2 + 20e6
    assert "Traceback" not in log[0]
