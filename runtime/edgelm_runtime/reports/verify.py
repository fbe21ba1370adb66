"""Does a model file still give the results that it was exported with? Needs onnxruntime only.

Two questions: are its bytes those that were written (`digest`), and does this onnxruntime, on this machine
and provider, compute what the golden vectors in the file say? A greedy token may differ where the two best
logits are closer than the error that is allowed anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.engine.recompute_decoder import RecomputeDecoder
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import VerificationError
from edgelm_runtime.generation.logprobs import logsumexp
from edgelm_runtime.model_file.digest import GRAPH_PART, SIDECAR_PART, file_digest
from edgelm_runtime.model_file.metadata import ModelFile, is_model_file, read_model_file
from edgelm_runtime.validation import path_of

DO_NOT_USE = "get the original file again, or export it again"


@dataclass(frozen=True)
class VerifyReport:
    """What was replayed. `max_abs_error` is over all logits that the file keeps, `atol` what was allowed;
    `near_ties` counts greedy tokens that differ within it."""

    provider: str
    prompts: int
    tokens: int
    max_abs_error: float
    atol: float
    near_ties: int

    def __str__(self) -> str:
        ties = f", {self.near_ties} of them another choice between equals" if self.near_ties else ""
        return (
            f"{self.prompts} prompts and {self.tokens} greedy tokens replayed on {self.provider}{ties}: "
            f"largest error {self.max_abs_error:.1e} (allowed {self.atol:.1e})"
        )


def verify(path: str | Path, provider: str = "auto", threads: int | None = None) -> VerifyReport:
    """Check the bytes of a model file and replay its golden vectors.

    Raises VerificationError where something differs, ModelFileError where the file cannot be used at all.
    """
    path = path_of("the model", path)
    session = Session(path, provider, threads)
    try:
        return verify_session(path, session)
    finally:
        session.close()


def verify_session(path: Path, session: Session) -> VerifyReport:
    """`verify` for the model file `path` that is loaded as `session`."""
    if not is_model_file(session.metadata):
        raise VerificationError(
            f"{path} is not a file of edgelm and carries nothing to verify",
            "export the model with edgelm",
        )
    model = read_model_file(session, str(path), check_digest=False)
    _check_digest(path, model, session)
    _check_tokenizer(path, model)
    return _replay(path, model, session)


def _check_digest(path: Path, model: ModelFile, session: Session) -> None:
    if not model.digest:
        raise VerificationError(f"{path} carries no digest", "export it again")
    assert session.model is not None  # it was loaded from a path
    found = file_digest(session.model)
    for part in sorted(found.keys() | model.digest.keys()):
        if found.get(part) != model.digest.get(part):
            names = {GRAPH_PART: "graph or its weights", SIDECAR_PART: "weights in the sidecar"}
            raise VerificationError(
                f"{path} was changed after its export: the {names.get(part, part)}", DO_NOT_USE
            )


def _check_tokenizer(path: Path, model: ModelFile) -> None:
    for prompt in model.golden_prompts:
        text = prompt.get("text")
        if text is not None and (model.tokenizer is None or model.tokenizer.encode(text) != prompt["ids"]):
            raise VerificationError(
                f"the tokenizer of {path} no longer encodes {text!r} as it did", DO_NOT_USE
            )


def _replay(path: Path, model: ModelFile, session: Session) -> VerifyReport:
    prompts = model.golden_prompts
    if not prompts:
        raise VerificationError(f"{path} carries no golden vectors", "export it again")
    decoder = RecomputeDecoder(session, model.context_length, model.vocab_size)
    atol = float(model.golden["atol"])
    worst, ties, tokens = 0.0, 0, 0
    for prompt in prompts:
        expected = prompt["tokens"]
        # The whole answer in one pass: attention is causal, so each step sees what it saw when it was made.
        ids = np.array([*prompt["ids"], *expected[:-1]], np.int64)
        (logits,) = decoder([ids], [len(expected)])
        for step, (token_id, summary) in enumerate(zip(expected, prompt["logits"], strict=True)):
            error = _error(logits[step], summary)
            if not error <= atol:
                raise VerificationError(
                    f"{path} gives other logits than at its export: off by {error:.2e} ({atol:.2e} allowed) "
                    f"at token {step} after {prompt.get('text', prompt['ids'][:8])!r}",
                    DO_NOT_USE,
                )
            worst = max(worst, error)
            # Both logits of a tie may be off, in opposite directions.
            if logits[step].argmax() != token_id:
                if logits[step].max() - logits[step][token_id] > 2 * atol:
                    raise VerificationError(f"{path} chooses other tokens than at its export", DO_NOT_USE)
                ties += 1
        tokens += len(expected)
    return VerifyReport(session.provider, len(prompts), tokens, worst, atol, ties)


def _error(logits: NDArray[Any], summary: Mapping[str, Any]) -> float:
    kept = np.abs(logits[summary["ids"]] - np.array(summary["values"])).max()
    return float(max(kept, abs(logsumexp(logits) - summary["logsumexp"])))
