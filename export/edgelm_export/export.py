"""Checkpoint in, model file out: trace, write, compare with PyTorch, seal, verify, and only then appear."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from edgelm.checkpoint import Checkpoint
from edgelm.config import ModelConfig
from edgelm.model import StoredModel, TorchDecoder
from edgelm_export.checks.golden import golden_prompts, golden_vectors
from edgelm_export.checks.parity import ParityReport, compare, make_cases
from edgelm_export.files.metadata import graph_facts, seal
from edgelm_export.files.reader import open_session
from edgelm_export.files.writer import new_model_file, write_graph
from edgelm_export.options import GraphOptions, check_options
from edgelm_export.progress import Report, quiet, unfailing
from edgelm_export.quantization.precision import FP32, QuantizeOptions
from edgelm_export.quantization.quality import Quality, answers, compare_answers, decoded
from edgelm_export.quantization.search import quantize
from edgelm_export.quantization.texts import CHATS, evaluation_text
from edgelm_export.tracing.export_model import trimmed
from edgelm_export.tracing.model_entries import model_entries
from edgelm_export.tracing.reference import torch_answer, torch_next
from edgelm_export.tracing.trace import build_graph
from edgelm_runtime.atomic_files import scratch_folder
from edgelm_runtime.engine.recompute_decoder import RecomputeDecoder
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import ExportError, OptionError, VerificationError
from edgelm_runtime.model_file.interface import CACHE_LENGTH, GOLDEN, GRAPH, PARITY
from edgelm_runtime.model_file.metadata import ModelFile, read_model_file
from edgelm_runtime.reports.verify import verify_session
from edgelm_runtime.validation import number

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Golden logits are replayed on other processors and providers, whose float32 sums differ more than those of
# two programs on one machine.
GOLDEN_SLACK = 10
LESS_AGREEMENT = 0.1  # of top-1 choices, on another text than the one that a file was measured on


def export_checkpoint(
    checkpoint: Checkpoint,
    path: Path,
    *,
    dtype: str = FP32,
    kv_cache: bool = False,
    target: str = "cpu",
    outputs: Sequence[str] = (),
    opset: int | None = None,
    atol: float | None = None,
    report: Report = quiet,
    **options: Unpack[QuantizeOptions],
) -> ParityReport:
    """Write `checkpoint` as the model file `path`, replacing a file that is there.

    `kv_cache`: with a cache of keys and values, as README.md says, by operators that `target` has kernels for: cpu
    or cuda. `outputs`: further graph outputs, of `embeddings` and `hidden`. `opset`: 18 to 25, by default 23, or 24
    for a cache on cuda; below 23 attention is spelled out for runtimes without the operator. `atol`: largest
    difference to PyTorch's logits that is allowed (default: 1e-4 of the largest logit). For a `dtype` other than fp32
    the fp32 graph is compared with PyTorch first and then quantised, by `options`, which are those of `quantize`.
    `report` is told what is going on, a line at a time.

    Raises ExportError where the graph does not agree with PyTorch, OutputError where the file cannot be
    written, OptionError for a bad option; then no file appears and one that was there stays.
    """
    graph, quantization = check_options(
        dtype=dtype, kv_cache=kv_cache, target=target, outputs=outputs, opset=opset, atol=atol, **options
    )
    report = unfailing(report)
    if quantization is None:
        return _export_fp32(checkpoint, path, graph, report)
    with scratch_folder(path) as folder:
        exact = folder / path.name
        parity = _export_fp32(checkpoint, exact, graph, report, final=False)
        if checkpoint.held_out and options.get("text") is None:
            options["text"] = _saved_chats(checkpoint, folder)
        quantize(exact, path, dtype, report=report, **options)
    return parity


def _saved_chats(checkpoint: Checkpoint, folder: Path) -> Path:
    """The chats that a taught model has not seen, which say better than any text what its quantisation costs."""
    path = folder / f"held-out chats{CHATS}"
    lines = (json.dumps(chat, ensure_ascii=False) for chat in checkpoint.held_out)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _export_fp32(
    checkpoint: Checkpoint, path: Path, options: GraphOptions, report: Report, final: bool = True
) -> ParityReport:
    """A file that is not `final` has no golden vectors: they are those of the file that is made from it."""
    model = trimmed(checkpoint)
    config = model.config
    if any(config.convolution_layers) and options.target == "cuda":
        raise OptionError(
            "the target is cuda, and convolutions with a cache have not been tried there",
            "choose --target cpu",
        )
    if config.num_experts and options.target == "cuda":
        raise OptionError(
            "the target is cuda, and the operator for experts is one for the CPU", "choose --target cpu"
        )
    entries = model_entries(checkpoint, model)
    prompts = golden_prompts(checkpoint.tokenizer, config.context_length, config.vocab_size)
    with new_model_file(path) as new:
        report(f"tracing {config.num_layers} layers, opset {options.opset}")
        graph = build_graph(model, options.opset, options.outputs, options.kv_cache, options.target)
        sidecar = write_graph(graph, new, report)
        report("comparing with PyTorch")
        answer = torch_answer(checkpoint.stored, config.vocab_size, report)
        sizes = ModelFile(config.to_dict(), None)
        cases = make_cases(answer, sizes, [p["ids"] for p in prompts], options.kv_cache)
        parity = compare(cases, functools.partial(open_session, new), options.atol, report=report)
        report(str(parity))
        entries[PARITY] = parity.to_dict()
        if final:
            following = torch_next(torch_answer(model, config.vocab_size))
            slack = GOLDEN_SLACK * parity.atol
            entries[GOLDEN] = golden_vectors(following, config.context_length, prompts, slack, report)
        entries[GRAPH] = graph_facts(graph, FP32, model.parameters, sidecar)
        seal(new, entries)
        if final:
            with closing(open_session(new)) as session:
                report(str(verify_session(new, session)))
    return parity


def compare_with_checkpoint(
    path: Path, checkpoint: Checkpoint, *, atol: float | None = None
) -> ParityReport | Quality:
    """Compare a finished model file with the PyTorch model it came from.

    An fp32 file is compared as at its export, `atol` by default what was allowed then; a smaller one by its
    perplexity, which may differ from PyTorch's by what was allowed when it was made, and its choices. Raises
    VerificationError where they differ, ModelFileError where the file cannot be used, OptionError for a bad `atol`.
    """
    if atol is not None:
        number("atol", atol, 0, math.inf, open_low=True)
    with closing(Session(path, "cpu")) as session:
        file = read_model_file(session, str(path))
        model = trimmed(checkpoint)
        if ModelConfig.from_dict(file.config) != model.config:
            raise VerificationError(
                f"{path} has another architecture than the checkpoint", "give its own checkpoint"
            )
        if file.dtype != FP32:
            if atol is not None:
                raise OptionError(f"atol has no meaning for a file in {file.dtype}", "leave it out")
            return _compare_quality(path, file, session, model)
        kv_cache = CACHE_LENGTH in session.inputs
    prompts = [prompt["ids"] for prompt in file.golden_prompts]
    cases = make_cases(torch_answer(checkpoint.stored, file.vocab_size), file, prompts, kv_cache)
    try:
        return compare(
            cases, functools.partial(open_session, path), atol if atol is not None else file.parity["atol"]
        )
    except ExportError as error:
        raise VerificationError(f"{path} is not this checkpoint: {error.problem}", error.remedy) from error


def _compare_quality(path: Path, file: ModelFile, session: Session, model: StoredModel) -> Quality:
    exact = TorchDecoder(model.load())
    text = evaluation_text(file, exact)
    decoder = RecomputeDecoder(session, file.context_length, file.vocab_size)
    quality = compare_answers(text, *(answers(decoded(each, text), text) for each in (exact, decoder)))
    allowed = float(file.quality["allowed_pct"])
    # A better perplexity or other choices are no better: the file is to be this checkpoint.
    same_choices = quality.top1_agreement > file.quality["top1_agreement"] - LESS_AGREEMENT
    if abs(quality.ppl_increase_pct) > allowed or not same_choices:
        raise VerificationError(
            f"{path} is not this checkpoint: {quality}, and {allowed:g}% is allowed",
            "give its own checkpoint",
        )
    return quality
