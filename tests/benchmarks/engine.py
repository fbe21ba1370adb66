"""What the engine gains by advancing several requests together, and what the size of a prompt's chunks costs.

    python tests/benchmarks/engine.py model.onnx

On one thread and in processor seconds, so that figures hold on a machine that does other things as well.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from edgelm_runtime import LanguageModel, load
from edgelm_runtime.engine.kv_cache import Cache
from edgelm_runtime.engine.session import Session

CALLERS = (1, 2, 4, 8, 16)
CHUNKS = (32, 64, 128, 256, 512)
NEW_TOKENS = 24


def together(lm: LanguageModel, callers: int) -> float:
    """Seconds for a short prompt and 24 sampled tokens for each of so many callers."""
    with lm.engine(parallel=callers) as engine:
        started = time.process_time()
        tickets = [
            engine.submit([1 + caller] * 8, max_new_tokens=NEW_TOKENS, lookup=0, seed=caller, temperature=1.0)
            for caller in range(callers)
        ]
        for ticket in tickets:
            ticket.result()
        return time.process_time() - started


def prefill(session: Session, vocab_size: int, length: int, chunk: int) -> tuple[float, np.ndarray]:
    """Seconds for a prompt in chunks of that size, and the logits of its last token."""
    cache = Cache(session, length, vocab_size, 1)
    cache.chunk = chunk
    ids = np.random.default_rng(0).integers(0, vocab_size, length)
    started = time.process_time()
    (logits,) = cache.logits([cache.acquire(ids)], [ids], [1])
    return time.process_time() - started, logits


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--length", type=int, default=768, help="tokens of the prompt that is cut")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with load(given.model, "cpu", 1) as lm:
        alone = min(together(lm, 1) for _ in range(given.rounds))
        for callers in CALLERS:
            seconds = min(together(lm, callers) for _ in range(given.rounds))
            print(
                f"{callers:3} callers: {seconds:.2f} s, {callers * alone / seconds:.2f} times the tokens of one"
            )
        length = min(given.length, lm.info.context_length)
        session = Session(given.model, "cpu", 1)
        _, whole = prefill(session, lm.info.vocab_size, length, length)
        for chunk in (length, *CHUNKS):
            rounds = [prefill(session, lm.info.vocab_size, length, chunk) for _ in range(given.rounds)]
            seconds = min(one for one, _ in rounds)
            difference = float(np.abs(rounds[0][1] - whole).max())
            print(f"{length} tokens in chunks of {chunk}: {seconds:.2f} s, logits differ by {difference:.1e}")


if __name__ == "__main__":
    main()
