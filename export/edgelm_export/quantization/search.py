"""A finished float32 model file in, a smaller one out, with the loss measured and bounded.

The loss is the increase of perplexity over the float32 graph. Where it exceeds what is allowed, smaller blocks are
tried, then the kinds of matrices that lose most (found by trying each) are kept at a higher precision, one after the
other. Smoothing and GPTQ are part of every plan: they cost seconds once and nothing at run time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgelm_export.checks.golden import golden_prompts, golden_vectors, one_by_one
from edgelm_export.checks.parity import consistency
from edgelm_export.files.metadata import graph_facts, seal
from edgelm_export.files.reader import open_session, read_graph
from edgelm_export.files.writer import new_model_file, write_graph
from edgelm_export.progress import Report, quiet, unfailing
from edgelm_export.quantization.plan import Plan, kind_of, matrices
from edgelm_export.quantization.precision import FP16, INT4, PRECISIONS, Quantization, QuantizeOptions
from edgelm_export.quantization.quality import Bound, Quality, answers, compare_answers, decoded
from edgelm_export.quantization.reference import Reference
from edgelm_runtime.errors import ExportError, OptionError
from edgelm_runtime.model_file.interface import DIGEST, GOLDEN, GRAPH, QUALITY
from edgelm_runtime.reports.verify import verify_session

if TYPE_CHECKING:
    from typing_extensions import Unpack

HEAD = "head"


def quantize(
    path: Path, output: Path, dtype: str, *, report: Report = quiet, **options: Unpack[QuantizeOptions]
) -> Quality:
    """Write the float32 model file `path` as `output` in another precision: fp16, int8 or int4.

    `options` are the fields of `Quantization`. `report` is told what is going on, a line at a time.

    Raises OptionError for an option that cannot be followed, before any work, and ExportError where no arrangement
    stays within the bound on the loss; then nothing is written.
    """
    asked = Quantization.of(dtype, options)
    if asked is None:
        raise OptionError(f"{path} is to become {dtype}", f"choose from {', '.join(PRECISIONS)}")
    report = unfailing(report)
    reference = Reference(path, asked.text, asked.fit, report)
    cached = reference.cached
    asked.check_file(cached)
    first = Plan(asked.precision, asked.first_block_size(cached), asked.int8_cache(cached))
    bound = asked.bound
    with new_model_file(output) as new:
        plan, quality = _search(reference, new, first, bound, report)
        about = quality.to_dict() | {"plan": str(plan), "allowed_pct": bound.ppl_increase_pct}
        _finish(reference, new, plan, about, report)
    return quality


def _search(
    reference: Reference, new: Path, first: Plan, bound: Bound, report: Report
) -> tuple[Plan, Quality]:
    """Write the first plan that is good enough to `new`."""
    results: dict[Plan, Quality] = {}
    for plan in _plans(reference, first, bound, results):
        results[plan] = _try(reference, new, plan, report)
        report(f"{plan}: {results[plan]}")
        if bound.holds(results[plan]):
            return plan, results[plan]
    best = min(results.values(), key=bound.excess)
    raise ExportError(
        f"{first.precision} raises the perplexity by {best.ppl_increase_pct:.2f}% at best ({bound.ppl_increase_pct:g}% "
        f"allowed), with {best.top1_agreement:.1%} top-1 agreement ({bound.agreement_pct:g}% required)",
        "allow more with --max-ppl-increase or --min-agreement, or choose a higher precision",
    )


def _plans(reference: Reference, first: Plan, bound: Bound, results: dict[Plan, Quality]) -> Iterator[Plan]:
    """Plans roughly in the order of their size, later ones chosen by the `results` of earlier ones."""
    if first.precision is INT4:
        # The head is the embedding too in most small models, and at 4 bits it costs the most by far.
        first = replace(first, kept=(HEAD,))
    yield first
    if first.precision is FP16:
        return
    if first.block_size:
        finer = [size for size in first.precision.block_sizes if size < first.block_size]
        yield from (replace(first, block_size=size) for size in finer)
    others = [kind for kind in _kinds(reference) if kind not in first.kept]
    singles = [replace(first, kept=(*first.kept, kind)) for kind in others]
    yield from singles
    ranked = [plan.kept[-1] for plan in sorted(singles, key=lambda plan: bound.excess(results[plan]))]
    for count in range(2, len(ranked)):
        yield replace(first, kept=(*first.kept, *ranked[:count]))


def _kinds(reference: Reference) -> list[str]:
    """The kinds of matrices in the graph."""
    return list(dict.fromkeys(kind_of(name) for name in matrices(reference.graph().graph)))


def _try(reference: Reference, new: Path, plan: Plan, report: Report) -> Quality:
    for stale in new.parent.iterdir():
        stale.unlink()
    graph = reference.graph()
    plan.apply(graph, reference)
    write_graph(graph, new)
    session = open_session(new)
    try:
        text = reference.evaluation
        found = answers(decoded(reference.decoder(session), text, report), text)
        return compare_answers(reference.evaluation, reference.answers, found)
    finally:
        session.close()


def _finish(reference: Reference, new: Path, plan: Plan, quality: dict[str, Any], report: Report) -> None:
    """Check that rows are independent, and give the written graph its metadata."""
    entries: dict[str, Any] = dict(reference.entries)
    sidecar = next((file for file in new.parent.iterdir() if file != new), None)
    file = reference.file
    prompts = golden_prompts(file.tokenizer, file.context_length, file.vocab_size)
    graph = read_graph(new)
    facts = graph_facts(graph, plan.precision.name, file.graph["parameters"], sidecar)
    rows = consistency(new, file, paired=not facts["cache_spare"], report=report)
    report(f"rows of a batch do not depend on each other: {rows}")
    session = open_session(new)
    following = one_by_one(reference.decoder(session))
    entries[GOLDEN] = golden_vectors(following, file.context_length, prompts, rows.atol, report)
    session.close()
    entries[GRAPH] = facts
    entries[QUALITY] = quality
    seal(new, {name: value for name, value in entries.items() if name != DIGEST})
    with closing(open_session(new)) as session:
        report(str(verify_session(new, session)))
