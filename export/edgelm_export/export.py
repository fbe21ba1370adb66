"""Checkpoint in, model file out: trace, write, compare with PyTorch, seal, verify, and only then appear."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgelm.checkpoint import Checkpoint
from edgelm.config import ModelConfig
from edgelm.model import Transformer
from edgelm.model.decoder import TorchDecoder
from edgelm_export.checks.golden import golden_prompts, golden_vectors
from edgelm_export.checks.parity import ParityReport, compare, make_cases
from edgelm_export.files.metadata import graph_facts, seal
from edgelm_export.files.writer import write_graph
from edgelm_export.quantization.quality import Quality, calibration, compare_answers
from edgelm_export.quantization.search import check_cache_dtype, check_precision, quantize
from edgelm_export.tracing.attention import FIRST_OPSET, FUSED_OPSET, LAST_OPSET
from edgelm_export.tracing.export_model import evaluating, trimmed
from edgelm_export.tracing.model_entries import model_entries
from edgelm_export.tracing.reference import torch_answer
from edgelm_export.tracing.scatter_attention import STATIC_CACHE_OPSET
from edgelm_export.tracing.trace import CACHED_OPERATORS, build_graph
from edgelm_runtime.atomic_files import new_files, scratch_folder
from edgelm_runtime.engine.recompute_decoder import RecomputeDecoder
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import ExportError, OptionError, VerificationError
from edgelm_runtime.model_file.interface import CACHE_LENGTH, EXTRA_OUTPUTS, GOLDEN, GRAPH, PARITY
from edgelm_runtime.model_file.metadata import ModelFile, read_model_file
from edgelm_runtime.reports.verify import verify

Report = Callable[[str], None]

# Golden logits are replayed on other processors and providers, whose float32 sums differ more than those of
# two programs on one machine.
GOLDEN_SLACK = 10
LESS_AGREEMENT = 0.1  # of top-1 choices, on another text than the one that a file was measured on


def export_checkpoint(
    checkpoint: Checkpoint,
    path: Path,
    *,
    dtype: str = "fp32",
    kv_cache: bool = False,
    target: str = "cpu",
    outputs: Sequence[str] = (),
    opset: int | None = None,
    atol: float | None = None,
    report: Report = lambda line: None,
    **options: Any,
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
    _check_options(outputs, atol)
    _check_target(target, kv_cache, dtype)
    opset = _opset(opset, target)
    if dtype == "fp32":
        return _export_fp32(checkpoint, path, kv_cache, target, outputs, opset, atol, report)
    check_precision(dtype, **options)
    check_cache_dtype(options.get("cache_dtype", "auto"), kv_cache)
    with scratch_folder(path) as folder:
        exact = folder / path.name
        parity = _export_fp32(checkpoint, exact, kv_cache, target, outputs, opset, atol, report)
        quantize(exact, path, dtype, report=report, **options)
    return parity


def _export_fp32(
    checkpoint: Checkpoint, path: Path, kv_cache: bool, target: str, outputs: Sequence[str], opset: int,
    atol: float | None, report: Report,
) -> ParityReport:  # fmt: skip
    model = trimmed(checkpoint)
    config = model.config
    entries = model_entries(checkpoint, model)
    prompts = golden_prompts(checkpoint.tokenizer, config.context_length, config.vocab_size)
    with new_files(path) as new:
        report(f"tracing {config.num_layers} layers, opset {opset}")
        graph = build_graph(model, opset, outputs, kv_cache, target)
        sidecar = write_graph(graph, new)
        report("comparing with PyTorch")
        with evaluating(checkpoint.model) as reference:
            answer = torch_answer(reference, config.vocab_size)
            cases = make_cases(
                answer, ModelFile(config.to_dict(), None), [p["ids"] for p in prompts], kv_cache
            )
        parity = compare(cases, functools.partial(_open, new), atol)
        report(str(parity))
        entries[PARITY] = parity.to_dict()
        entries[GOLDEN] = golden_vectors(TorchDecoder(model), prompts, GOLDEN_SLACK * parity.atol)
        parameters = sum(weight.numel() for weight in model.parameters())
        entries[GRAPH] = graph_facts(graph, "fp32", parameters, sidecar)
        seal(new, entries, sidecar)
        report(str(verify(new, "cpu")))
    return parity


def compare_with_checkpoint(
    path: Path, checkpoint: Checkpoint, *, atol: float | None = None
) -> ParityReport | Quality:
    """Compare a finished model file with the PyTorch model it came from.

    An fp32 file as at its export, `atol` by default what was allowed then; a smaller one by its perplexity,
    which may exceed PyTorch's by what was allowed when it was made. Raises VerificationError where they
    differ, ModelFileError where the file cannot be used.
    """
    session = Session(path, "cpu")
    file = read_model_file(session, str(path))
    model = trimmed(checkpoint)
    if ModelConfig.from_dict(file.config) != model.config:
        raise VerificationError(
            f"{path} has another architecture than the checkpoint", "give its own checkpoint"
        )
    if file.dtype != "fp32":
        return _compare_quality(path, file, session, model)
    kv_cache = CACHE_LENGTH in session.inputs
    session.close()
    prompts = [prompt["ids"] for prompt in file.golden_prompts]
    with evaluating(checkpoint.model) as reference:
        cases = make_cases(torch_answer(reference, file.vocab_size), file, prompts, kv_cache)
    try:
        return compare(cases, functools.partial(_open, path), atol or file.parity["atol"])
    except ExportError as error:
        raise VerificationError(f"{path} is not this checkpoint: {error.problem}", error.remedy) from error


def _compare_quality(path: Path, file: ModelFile, session: Session, model: Transformer) -> Quality:
    exact = TorchDecoder(model)
    sample = calibration(file, exact)
    decoder = RecomputeDecoder(session, file.context_length, file.vocab_size)
    quality = compare_answers(sample, sample.answers(exact), sample.answers(decoder))
    session.close()
    allowed = float(file.quality["allowed_pct"])
    # A better perplexity or other choices are no better: the file is to be this checkpoint.
    same_choices = quality.top1_agreement > file.quality["top1_agreement"] - LESS_AGREEMENT
    if abs(quality.ppl_increase_pct) > allowed or not same_choices:
        raise VerificationError(
            f"{path} is not this checkpoint: {quality}, and {allowed:g}% is allowed",
            "give its own checkpoint",
        )
    return quality


def _open(path: Path, optimize: bool) -> Session:
    return Session(path, "cpu", optimize=optimize)


def _check_options(outputs: Sequence[str], atol: float | None) -> None:
    for name in outputs:
        if name not in EXTRA_OUTPUTS:
            raise OptionError(f"there is no output {name!r}", f"choose from {', '.join(EXTRA_OUTPUTS)}")
    if atol is not None and not atol > 0:
        raise OptionError(f"atol is {atol}", "give a number above 0")


def _check_target(target: str, kv_cache: bool, dtype: str) -> None:
    if target not in CACHED_OPERATORS:
        raise OptionError(f"there is no target {target!r}", f"choose from {', '.join(CACHED_OPERATORS)}")
    if target == "cpu":
        return
    if not kv_cache:
        raise OptionError(
            f"the target {target} is for a cache", "add --kv-cache; a file without one runs everywhere"
        )
    if dtype not in ("fp32", "fp16"):
        # Their weights and caches are made for `GroupQueryAttention` and the CPU's kernels.
        raise OptionError(f"there is no {dtype} file with a cache for {target}", "choose fp32 or fp16")


def _opset(opset: int | None, target: str) -> int:
    """The opset asked for, or what `target` wants."""
    first = FIRST_OPSET if target == "cpu" else STATIC_CACHE_OPSET
    if opset is None:
        return max(first, FUSED_OPSET)
    if not first <= opset <= LAST_OPSET:
        which = "" if target == "cpu" else f" for a cache on {target}"
        raise OptionError(f"opset {opset} is not supported{which}", f"choose from {first} to {LAST_OPSET}")
    return opset
