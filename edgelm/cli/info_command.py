"""`edgelm info MODEL`: what a model file is. Needs no PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click


@click.command("info")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(model: Path, as_json: bool) -> None:
    """Say what the model file MODEL is: sizes, architecture, interface, parity, origin."""
    from edgelm_runtime.reports.describe import describe

    about = describe(model)
    if as_json:
        click.echo(json.dumps(about, indent=2, ensure_ascii=False))
        return
    rows = list(_rows(about))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")


def _rows(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "file", f"{about['path']}, {_megabytes(about['bytes'])}"
    if about["format"] is None:
        yield "kind", "an ONNX model without edgelm's metadata"
    else:
        yield from _model_rows(about)
    for kind in ("inputs", "outputs"):
        for name, tensor in about[kind].items():
            yield kind[:-1], f"{name} {_type(tensor['type'])} {_shape(tensor['shape'])}"


def _model_rows(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    graph, parity, tokenizer = about["graph"], about["parity"], about["tokenizer"]
    if about["sidecar"]:
        yield "sidecar", f"{about['sidecar']}, {_megabytes(about['sidecar_bytes'])}"
    if graph:
        yield "parameters", f"{graph['parameters']:,} ({graph['dtype']}, {_megabytes(graph['weight_bytes'])})"
    yield "architecture", _architecture(about["architecture"])
    yield "context", f"{about['context_length']} tokens"
    kind = "no tokenizer, token ids only" if tokenizer is None else f"{tokenizer['tokens']} byte strings"
    special = "" if tokenizer is None else f" and {len(tokenizer['special'])} special tokens"
    yield "vocabulary", f"{about['vocab_size']} ids; {kind}{special}"
    if graph:
        yield (
            "graph",
            f"opset {graph['opset']}; " + ", ".join(f"{n} {op}" for op, n in graph["operators"].items()),
        )
    if parity:
        yield (
            "parity",
            (
                f"largest error against PyTorch {parity['max_abs_error']:.1e} over {parity['cases']} batches "
                f"of up to {parity['longest']} tokens (allowed {parity['atol']:.1e}), "
                f"greedy agreement {parity['greedy_agreement']:.2%}"
            ),
        )
    if quality := about["quality"]:
        yield (
            "quality",
            (
                f"{quality['plan']}: perplexity {quality['perplexity']:.4g}, {quality['ppl_increase_pct']:+.2f}% over "
                f"fp32, top-1 agreement {quality['top1_agreement']:.1%} on {quality['text']}"
            ),
        )
    for name, value in about["origin"].items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield "origin", f"{name}: {shown}"


def _architecture(config: Mapping[str, Any]) -> str:
    heads = str(config["num_heads"])
    if config["num_kv_heads"] != config["num_heads"]:
        heads += f" (on {config['num_kv_heads']} key and value heads)"
    parts = [
        f"{config['num_layers']} layers, width {config['width']}, {heads} heads of {config['head_dim']}",
        f"MLP {config['mlp_width']} {config['activation']}{' gated' if config['gated_mlp'] else ''}",
        config["norm"],
        f"{config['position']} positions",
        f"{'tied' if config['tied_head'] else 'separate'} head",
    ]
    if config["sliding_window"]:
        parts.append(f"window of {config['sliding_window']}")
    return ", ".join(parts)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _type(name: str) -> str:
    return (
        name.removeprefix("tensor(")
        .removesuffix(")")
        .replace("float", "float32")
        .replace("float3216", "float16")
    )


def _shape(shape: list[Any]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"
