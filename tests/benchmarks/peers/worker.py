"""A peer in a process of its own: loads a model, then answers one JSON request per line.

    python worker.py PEER MODEL THREADS OPTIONS

Runs in the peer's own environment, so it needs nothing but the standard library and that peer. What a peer prints
goes to standard error; the answers have the original standard output for themselves.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


def main() -> None:
    name, model, threads, options = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = importlib.import_module(f"adapters.{name}").Peer(model, int(threads), **json.loads(options))
    _answer(answers, {"version": peer.version})
    for line in sys.stdin:
        _answer(answers, _do(peer, json.loads(line)))


def _answer(answers: Any, value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def _do(peer: Any, request: dict[str, Any]) -> Any:
    if request["do"] == "generate":
        peer.forget()
        ids, seconds = peer.generate(request["ids"], request["count"])
        return {"ids": [int(i) for i in ids], "seconds": seconds}
    if request["do"] == "logprob_sum":
        return {"logprob_sum": peer.logprob_sum(request["windows"])}
    if request["do"] == "memory":
        return {"peak_bytes": peak_memory()}
    raise ValueError(f"unknown request {request['do']!r}")


def peak_memory() -> int:
    """Peak resident memory of this process in bytes, mapped files included (Linux)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


if __name__ == "__main__":
    main()
