"""A finished float32 model file in, a smaller one out, with the loss measured and bounded.

The loss is the increase of perplexity over the float32 graph. Where it exceeds what is allowed, smaller blocks are
tried, then kinds of matrices that lose most (found by trying each) are kept at a higher precision, one after the
other. Smoothing and GPTQ are part of every plan: they cost seconds once and nothing at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgelm_export.checks.golden import golden_vectors
from edgelm_export.checks.parity import consistency
from edgelm_export.files.metadata import graph_facts, seal
from edgelm_export.files.writer import write_graph
from edgelm_export.passes.builder import products
from edgelm_export.quantization.plan import Plan, kind_of
from edgelm_export.quantization.quality import Quality, compare_answers
from edgelm_export.quantization.reference import Source
from edgelm_runtime.atomic_files import new_files
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import ExportError, OptionError
from edgelm_runtime.model_file.interface import DIGEST, GOLDEN, GRAPH, QUALITY
from edgelm_runtime.reports.verify import verify

Report = Callable[[str], None]

# Percent of perplexity that a precision may cost by default.
ALLOWED: dict[str, float] = {"fp16": 0.5, "int8": 2.0, "int4": 8.0}
KERNELS = ("auto", "rows", "blocks")
CACHE_DTYPES = ("auto", "fp32", "int8")
# The operator takes larger blocks too, but adds up a single row of them otherwise than the rows of a longer pass.
BLOCK_SIZES: dict[str, tuple[int, ...]] = {"int8": (64, 32, 16), "int4": (32, 16)}
HEAD = "head"


def quantize(
    path: Path,
    output: Path,
    dtype: str,
    *,
    text: Path | None = None,
    max_ppl_increase: float | None = None,
    kernel: str = "auto",
    block_size: int = 32,
    cache_dtype: str = "auto",
    report: Report = lambda line: None,
) -> Quality:
    """Write the float32 model file `path` as `output` in another precision: fp16, int8 or int4.

    `text`: quality is measured on its first 4096 tokens, rounding fitted on the rest (default: samples that ship with
    edgelm). `max_ppl_increase` is in percent. `kernel`: `rows` is int8 for whole windows, `blocks` (of `block_size`
    weights) is for steps with a cache; `auto` goes by whether the file has a cache. int4 is always in blocks.
    `cache_dtype` is what keys and values are kept in: int8, or fp32, which is faster for long prompts; `auto` is
    int8 except for fp16.

    Raises ExportError where no arrangement stays below `max_ppl_increase`; then nothing is written.
    """
    check_precision(dtype, kernel, block_size, cache_dtype, text)
    allowed = ALLOWED[dtype] if max_ppl_increase is None else max_ppl_increase
    source = Source(path, text, dtype != "fp16" and cache_dtype != "fp32", output)
    check_cache_dtype(cache_dtype, source.cached)
    in_blocks = dtype == "int4" or (
        dtype == "int8" and (kernel == "blocks" or (kernel == "auto" and source.cached))
    )
    with new_files(output) as new:
        plan, quality = _search(source, new, Plan(dtype, block_size if in_blocks else 0), allowed, report)
        about = quality.to_dict() | {"plan": str(plan), "allowed_pct": allowed}
        _finish(source, new, plan, about, report)
    return quality


def check_precision(
    dtype: str, kernel: str = "auto", block_size: int = 32, cache_dtype: str = "auto",
    text: Path | None = None, **_: Any,
) -> None:  # fmt: skip
    """Raise OptionError for options that `quantize` cannot follow, before anything takes time."""
    if dtype not in ALLOWED:
        raise OptionError(f"there is no precision {dtype!r}", f"choose from fp32, {', '.join(ALLOWED)}")
    if kernel not in KERNELS or (kernel == "rows" and dtype != "int8"):
        raise OptionError(f"there is no kernel {kernel!r} for {dtype}", f"choose from {', '.join(KERNELS)}")
    sizes = BLOCK_SIZES.get(dtype, (block_size,))
    if block_size not in sizes:
        raise OptionError(
            f"the block size is {block_size} for {dtype}", f"choose from {', '.join(map(str, sizes))}"
        )
    caches = CACHE_DTYPES[:2] if dtype == "fp16" else CACHE_DTYPES
    if cache_dtype not in caches:
        raise OptionError(
            f"there is no {cache_dtype!r} cache for {dtype}", f"choose from {', '.join(caches)}"
        )
    if text is not None and not text.is_file():
        raise OptionError(f"there is no calibration text {text}", "give a UTF-8 file")


def check_cache_dtype(cache_dtype: str, cached: bool) -> None:
    """Raise OptionError where a cache is described and there is none."""
    if cache_dtype != "auto" and not cached:
        raise OptionError(
            f"the cache is to be {cache_dtype}, and the file has none", "add --kv-cache on export"
        )


def _search(source: Source, new: Path, first: Plan, allowed: float, report: Report) -> tuple[Plan, Quality]:
    """Write the first plan that is good enough to `new`."""
    results: dict[Plan, Quality] = {}
    for plan in _plans(source, first, results):
        results[plan] = _try(source, new, plan)
        report(f"{plan}: {results[plan]}")
        if results[plan].ppl_increase_pct <= allowed:
            return plan, results[plan]
    best = min(results.values(), key=lambda quality: quality.ppl_increase_pct)
    raise ExportError(
        f"{first.dtype} raises the perplexity by {best.ppl_increase_pct:.2f}% at best, and {allowed:g}% is allowed",
        "allow more with --max-ppl-increase, or choose a higher precision",
    )


def _plans(source: Source, first: Plan, results: dict[Plan, Quality]) -> Iterator[Plan]:
    """Plans roughly in the order of their size, later ones chosen by the `results` of earlier ones."""
    if first.dtype == "int4":
        # The head is the embedding too in most small models, and at 4 bits it costs the most by far.
        first = replace(first, kept=(HEAD,))
    yield first
    if first.dtype == "fp16":
        return
    if first.block_size:
        finer = [size for size in BLOCK_SIZES[first.dtype] if size < first.block_size]
        yield from (replace(first, block_size=size) for size in finer)
    others = [kind for kind in _kinds(source) if kind not in first.kept]
    singles = [replace(first, kept=(*first.kept, kind)) for kind in others]
    yield from singles
    ranked = [plan.kept[-1] for plan in sorted(singles, key=lambda plan: results[plan].ppl_increase_pct)]
    for count in range(2, len(ranked)):
        yield replace(first, kept=(*first.kept, *ranked[:count]))


def _kinds(source: Source) -> list[str]:
    """The kinds of matrices in the graph."""
    return list(dict.fromkeys(kind_of(product.name) for product in products(source.graph().graph)))


def _try(source: Source, new: Path, plan: Plan) -> Quality:
    for stale in new.parent.iterdir():
        stale.unlink()
    graph = source.graph()
    plan.apply(graph, source)
    write_graph(graph, new)
    session = Session(new, "cpu")
    try:
        return compare_answers(
            source.calibration, source.answers, source.calibration.answers(source.decoder(session))
        )
    finally:
        session.close()


def _finish(source: Source, new: Path, plan: Plan, quality: dict[str, Any], report: Report) -> None:
    """Check that rows are independent, and give the written graph its metadata."""
    entries: dict[str, Any] = dict(source.entries)
    sidecar = next((file for file in new.parent.iterdir() if file != new), None)
    prompts: list[dict[str, Any]] = [
        {k: p[k] for k in ("text", "ids") if k in p} for p in source.file.golden_prompts
    ]
    graph = ir.load(new)
    facts = graph_facts(graph, plan.dtype, source.file.graph["parameters"], sidecar)
    rows = consistency(new, source.file, paired=not facts["cache_spare"])
    report(f"rows of a batch do not depend on each other: {rows}")
    session = Session(new, "cpu")
    entries[GOLDEN] = golden_vectors(source.decoder(session), prompts, rows.atol)
    session.close()
    entries[GRAPH] = facts
    entries[QUALITY] = quality
    seal(new, {name: value for name, value in entries.items() if name != DIGEST}, sidecar)
    report(str(verify(new, "cpu")))
