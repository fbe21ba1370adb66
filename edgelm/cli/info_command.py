"""`edgelm info MODEL`: what a model file holds. Needs no PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from edgelm.cli.arguments import model_path
from edgelm.cli.streams import print_json


@click.command("info")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(model: Path, as_json: bool) -> None:
    """Describe the model file MODEL: sizes, architecture, interface, parity, origin."""
    from edgelm_runtime.reports.describe import describe

    about = describe(model_path(str(model)))
    if as_json:
        print_json(about, indent=2)
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
    tokenizer = about["tokenizer"]
    if about["sidecar"]:
        yield "sidecar", f"{about['sidecar']}, {_megabytes(about['sidecar_bytes'])}"
    graph = dict(about["graph"])
    if "weight_bytes" in graph:
        graph["size"] = _megabytes(graph["weight_bytes"])
    operators = ", ".join(f"{count} {name}" for name, count in graph.get("operators", {}).items())
    kind = "no tokenizer, token ids only" if tokenizer is None else f"{tokenizer['tokens']} byte strings"
    special = "" if tokenizer is None else f" and {_counted(len(tokenizer['special']), 'special token')}"
    rows = {
        "parameters": _joined(graph, "{parameters:,} ({dtype}, {size})"),
        "architecture": _architecture(about["architecture"]),
        "context": f"{about['context_length']} tokens",
        "vocabulary": f"{about['vocab_size']} ids; {kind}{special}",
        "graph": _joined(graph, "opset {opset}") + (f"; {operators}" if operators else ""),
        "parity": _joined(
            about["parity"],
            "largest error against PyTorch {max_abs_error:.1e} over {cases} batches of up to {longest} tokens "
            "(allowed {atol:.1e})",
            "greedy agreement {greedy_agreement:.2%}",
        ),
        "quality": _joined(
            about["quality"],
            "{plan}: perplexity {perplexity:.4g}",
            "{ppl_increase_pct:+.2f}% compared with fp32",
            "top-1 agreement {top1_agreement:.1%} on {text}",
        ),
    }
    yield from ((name, text) for name, text in rows.items() if text)
    yield from _origin(about["origin"])


def _joined(values: Mapping[str, Any], *forms: str) -> str:
    """Each of `forms` filled with the values that it names; those that name a missing one are left out."""
    parts = []
    for form in forms:
        with contextlib.suppress(KeyError):
            parts.append(form.format_map(values))
    return ", ".join(parts)


def _origin(origin: Mapping[str, Any], row: str = "origin") -> Iterator[tuple[str, str]]:
    """Where a model came from, for a person; --json has all of it."""
    known = (
        "source",
        "path",
        "model_type",
        "architecture",
        "training",
        "versions",
        "weights_sha256",
        "started_from",
    )
    names = [str(origin[name]) for name in ("source", "path") if name in origin]
    kinds = [str(origin[name]) for name in ("model_type", "architecture") if name in origin]
    if names:
        yield row, ", ".join(names) + (f" ({', '.join(kinds)})" if kinds else "")
    for name, value in origin.items():
        if name not in known and isinstance(value, (str, int, float)):
            yield row, f"{name.replace('_', ' ')}: {value}"
    if isinstance(training := origin.get("training"), Mapping):
        yield "training", _training(training)
    if isinstance(versions := origin.get("versions"), Mapping):
        yield "made with", ", ".join(f"{tool} {version}" for tool, version in versions.items())
    if digest := origin.get("weights_sha256"):
        yield "weights", f"SHA-256 {digest}"
    if isinstance(earlier := origin.get("started_from"), Mapping) and earlier:
        yield from _origin(earlier, "started from")


def _training(about: Mapping[str, Any]) -> str:
    """The figures of a training run that a person asks for; each of them may be missing."""
    data = about.get("config", {}).get("data") if isinstance(about.get("config"), Mapping) else None
    parts = [
        f"{about['steps']:,} steps" if _is_number(about.get("steps")) else "",
        f"{about['tokens']:,} tokens" if _is_number(about.get("tokens")) else "",
        f"{about['minutes']:.1f} minutes" if _is_number(about.get("minutes")) else "",
        f"on {about['device']}" if about.get("device") else "",
        f"data {' '.join(map(str, data))}" if isinstance(data, list) else "",
        f"validation loss {about['val_loss']:.4f}" if _is_number(about.get("val_loss")) else "",
        f"{about['val_bits_per_byte']:.4f} bits per byte"
        if _is_number(about.get("val_bits_per_byte"))
        else "",
    ]
    return ", ".join(part for part in parts if part)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _architecture(config: Mapping[str, Any]) -> str:
    words = {"num_layers": "layer", "num_heads": "head", "num_kv_heads": "key-value head"}
    values = {
        **config,
        **{name: _counted(config[name], word) for name, word in words.items() if name in config},
    }
    shared = config.get("num_kv_heads") != config.get("num_heads")
    forms = [
        "{num_layers}",
        "width {width}",
        "{num_heads} of {head_dim}" + (" on {num_kv_heads}" if shared else ""),
        ("{experts_per_token} of {num_experts} experts, each " if config.get("num_experts") else "")
        + "MLP {mlp_width} {activation}"
        + (" gated" if config.get("gated_mlp") else ""),
        "{norm}",
        "{position} positions",
    ]
    if "tied_head" in config:
        forms.append("tied head" if config["tied_head"] else "separate head")
    if config.get("sliding_window"):
        forms.append("window of {sliding_window}")
    return _joined(values, *forms)


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


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
