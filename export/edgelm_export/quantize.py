"""A finished float32 model file in, a smaller one out, with the loss measured and bounded.

The loss is the increase of perplexity over the float32 graph. Where it exceeds what is allowed, kinds of
matrices that lose most (found by trying each) are kept at a higher precision, one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgelm_export.fp16 import Float16Weights
from edgelm_export.golden import golden_vectors
from edgelm_export.int8 import RowwiseInt8
from edgelm_export.metadata import graph_facts, seal
from edgelm_export.parity import consistency
from edgelm_export.quality import Answers, Calibration, Quality, calibration, compare_answers
from edgelm_export.rewriting import products
from edgelm_export.writer import new_file, write_graph
from edgelm_runtime.decoder import RecomputeDecoder
from edgelm_runtime.errors import ExportError, OptionError
from edgelm_runtime.model_file import PREFIX, ModelFile, read_model_file
from edgelm_runtime.session import Session
from edgelm_runtime.verify import verify

Report = Callable[[str], None]

# Percent of perplexity that a precision may cost by default.
ALLOWED: dict[str, float] = {"fp16": 0.5, "int8": 2.0}


@dataclass(frozen=True)
class Plan:
    """What happens to which matrices; `kept` are kinds such as `mlp.down` that stay at 16 bits."""

    dtype: str
    kept: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.dtype + (f", {' and '.join(self.kept)} at 16 bits" if self.kept else "")

    def apply(self, graph: ir.Model) -> None:
        """Rewrite `graph`."""
        if self.dtype == "fp16":
            Float16Weights()(graph)
            return
        names = [product.name for product in products(graph.graph)]
        kept = {name for name in names if kind_of(name) in self.kept}
        RowwiseInt8(keep=kept)(graph)
        Float16Weights(only=kept)(graph)


def kind_of(weight: str) -> str:
    """`attention.qkv` for `blocks.3.attention.qkv.weight`; `head` for the head."""
    parts = [part for part in weight.split(".") if not part.isdigit()]
    return ".".join(parts[1:-1] if parts[0] == "blocks" else parts[:-1])


class Source:
    """The float32 file: its graph, its metadata, and what it answers to the calibration text."""

    def __init__(self, path: Path, text: Path | None) -> None:
        session = Session(path, "cpu")
        try:
            self.file: ModelFile = read_model_file(session, str(path))
            dtype = self.file.graph.get("dtype")
            if dtype != "fp32":
                raise OptionError(f"{path} is {dtype} already", "quantise the fp32 file")
            self.entries = {
                key.removeprefix(PREFIX): json.loads(value)
                for key, value in session.metadata.items()
                if key.startswith(PREFIX)
            }
            decoder = self.decoder(session)
            self.calibration: Calibration = calibration(self.file, decoder, text)
            self.answers: Answers = self.calibration.answers(decoder)
        finally:
            session.close()
        self._path = path

    def decoder(self, session: Session) -> RecomputeDecoder:
        """A decoder over a graph of the same interface."""
        return RecomputeDecoder(session, self.file.context_length, self.file.vocab_size)

    def graph(self) -> ir.Model:
        """The graph, read anew, without metadata."""
        graph = ir.load(self._path)
        graph.metadata_props.clear()
        return graph

    def kinds(self) -> list[str]:
        """The kinds of matrices in the graph."""
        return list(dict.fromkeys(kind_of(product.name) for product in products(self.graph().graph)))


def quantize(
    path: Path,
    output: Path,
    dtype: str,
    *,
    text: Path | None = None,
    max_ppl_increase: float | None = None,
    report: Report = lambda line: None,
) -> Quality:
    """Write the float32 model file `path` as `output` in another precision.

    `text` is what quality is measured on (default: a sample that ships with edgelm). `max_ppl_increase` is in
    percent. Raises ExportError where no arrangement stays below it; then nothing is written.
    """
    check_dtype(dtype)
    allowed = ALLOWED[dtype] if max_ppl_increase is None else max_ppl_increase
    source = Source(path, text)
    with new_file(output) as new:
        plan, quality = _search(source, new, dtype, allowed, report)
        about = quality.to_dict() | {"plan": str(plan), "allowed_pct": allowed}
        _finish(source, new, plan, about, report)
    return quality


def check_dtype(dtype: str) -> None:
    """Raise OptionError for a precision that `quantize` does not make."""
    if dtype not in ALLOWED:
        raise OptionError(f"there is no precision {dtype!r}", f"choose from fp32, {', '.join(ALLOWED)}")


def _search(source: Source, new: Path, dtype: str, allowed: float, report: Report) -> tuple[Plan, Quality]:
    """Write the first plan that is good enough to `new`."""
    results: dict[Plan, Quality] = {}
    for plan in _plans(source, dtype, results):
        results[plan] = _try(source, new, plan)
        report(f"{plan}: {results[plan]}")
        if results[plan].ppl_increase_pct <= allowed:
            return plan, results[plan]
    best = min(results.values(), key=lambda quality: quality.ppl_increase_pct)
    raise ExportError(
        f"{dtype} raises the perplexity by {best.ppl_increase_pct:.2f}% at best, and {allowed:g}% is allowed",
        "allow more with --max-ppl-increase, or choose a higher precision",
    )


def _plans(source: Source, dtype: str, results: dict[Plan, Quality]) -> Iterator[Plan]:
    """Plans in the order of their size, later ones chosen by the `results` of earlier ones."""
    yield Plan(dtype)
    if dtype == "fp16":
        return
    kinds = source.kinds()
    singles = [Plan(dtype, (kind,)) for kind in kinds]
    yield from singles
    ranked = [plan.kept[0] for plan in sorted(singles, key=lambda plan: results[plan].ppl_increase_pct)]
    for count in range(2, len(kinds)):
        yield Plan(dtype, tuple(ranked[:count]))


def _try(source: Source, new: Path, plan: Plan) -> Quality:
    for stale in new.parent.iterdir():
        stale.unlink()
    graph = source.graph()
    plan.apply(graph)
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
    prompts = [{k: p[k] for k in ("text", "ids") if k in p} for p in entries["golden"]["prompts"]]
    rows = consistency(new, source.file)
    report(f"rows of a batch do not depend on each other: {rows}")
    session = Session(new, "cpu")
    entries["golden"] = golden_vectors(source.decoder(session), prompts, rows.atol)
    session.close()
    sidecar = next((file for file in new.parent.iterdir() if file != new), None)
    graph = ir.load(new)
    entries["graph"] = graph_facts(graph, plan.dtype, entries["graph"]["parameters"], sidecar)
    entries["quality"] = quality
    seal(new, {name: value for name, value in entries.items() if name != "digest"}, sidecar)
    report(str(verify(new, "cpu")))
