"""`edgelm train`: text in, a folder with checkpoints and figures out."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import click

from edgelm.config import ModelConfig
from edgelm.training.config import RunConfig, TrainingConfig, resolve, resumed

DEFAULT_PRESET = "small"
# Fields of the architecture that have a flag. Of the others, the tokenizer decides one and two are tables,
# which a TOML preset can hold.
_ARCHITECTURE = {
    "context_length": "Tokens that the model sees.",
    "width": "Features of the hidden states.",
    "num_layers": "Blocks.",
    "num_heads": "Attention heads.",
    "num_kv_heads": "Heads that keys and values have; 0: as many as queries.",
    "head_dim": "Features of a head; 0: width / heads.",
    "mlp_width": "Features inside the MLP; 0: 4 x width.",
    "norm": "Kind of normalisation.",
    "norm_eps": "Added to the variance.",
    "norm_bias": "Bias of a layernorm.",
    "activation": "Activation of the MLP.",
    "gated_mlp": "MLP with a gate (SwiGLU and its kin).",
    "qkv_bias": "Biases of queries, keys and values.",
    "attention_bias": "Bias behind the attention heads.",
    "mlp_bias": "Biases of the MLP.",
    "head_bias": "Bias of the output head.",
    "tied_head": "The head is the token embedding.",
    "position": "How positions are known.",
    "rotary_dim": "Features of a head that rotate; 0: all.",
    "rope_theta": "Base of the rotation.",
    "sliding_window": "Tokens that a local layer sees; 0: all.",
    "local_rope_theta": "Base of the rotation in local layers; 0: the same.",
    "attention_scale": "Factor on query-key products; 0: 1 / sqrt(head_dim).",
    "query_key_norm": "Norms on queries and keys.",
    "parallel_residual": "Attention and MLP from the same input.",
    "post_norm": "Norms behind attention and MLP too.",
    "embedding_scale": "Factor on token embeddings.",
    "attention_softcap": "Bound on attention scores; 0: none.",
    "logit_softcap": "Bound on logits; 0: none.",
    "dropout": "Share of activations that a step leaves out.",
    "init": "Initial weights: GPT-2's, or PyTorch's own.",
}


def _flags(of: type, about: Mapping[str, str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A flag for each field of a dataclass that `about` explains. They have no defaults: what is not given
    stays as the preset says."""
    kinds = typing.get_type_hints(of)

    def add(function: Callable[..., None]) -> Callable[..., None]:
        for item in reversed([item for item in fields(of) if item.name in about]):
            function = _flag(item, kinds[item.name], about[item.name])(function)
        return function

    return add


def _flag(item: Field[Any], kind: Any, about: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    name = item.name.replace("_", "-")
    if kind is bool:
        return click.option(f"--{name}/--no-{name}", item.name, default=None, help=about)
    if kind == tuple[str, ...]:
        return click.option(f"--{name}", item.name, multiple=True, help=f"{about} May be repeated.")
    choices = typing.get_args(kind)
    return click.option(f"--{name}", item.name, type=click.Choice(choices) if choices else kind, help=about)


@click.command(name="train")
@click.argument("data", nargs=-1)
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder of the run.")
@click.option("--preset", help=f"Name in models/ or TOML file with settings. [{DEFAULT_PRESET}]")
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@click.option("--overwrite", is_flag=True, help="Replace the run in --out.")
@_flags(
    TrainingConfig,
    {item.name: item.metadata["help"] for item in fields(TrainingConfig) if item.name != "data"},
)
@_flags(ModelConfig, _ARCHITECTURE)
def command(
    data: tuple[str, ...], out: Path, preset: str | None, resume: bool, overwrite: bool, **given: Any
) -> None:
    """Train a tokenizer and a model on your text.

    DATA are files, folders, globs, - for standard input, or @stdlib for Python's own source code. A
    .jsonl file holds a document per line, any other file is one document.

    Every setting is a flag or a line of a TOML preset; a flag wins. The values in brackets hold where
    neither says otherwise.
    """
    from edgelm.cli.training_display import Display
    from edgelm.training.run import train

    run = _run(data, out, preset, resume, given)
    with Display(sys.stderr) as display:
        outcome = train(run, out, resume=resume, overwrite=overwrite, reporter=display)
    if not outcome.writes:
        return
    if not outcome.finished:
        click.echo(f"stopped at step {outcome.step}; go on with: edgelm train --resume --out {out}", err=True)
        sys.exit(130)
    if outcome.measure is not None:
        click.echo(
            f"held out: {outcome.measure.loss:.4f} nats per token, {outcome.measure.bits_per_byte:.4f} bits per byte"
        )
    click.echo(f"sample:\n{outcome.sample}\n")
    click.echo(f"best checkpoint: {out / 'best'}; next: edgelm export {out} -o model.onnx")


def _run(
    data: tuple[str, ...], out: Path, preset: str | None, resume: bool, given: dict[str, Any]
) -> RunConfig:
    """Settings from the preset, or from the run that is resumed, with the flags over them."""
    known = {item.name for item in fields(TrainingConfig)}
    flags = {name: value for name, value in given.items() if value is not None and value != ()}
    settings = {name: value for name, value in flags.items() if name in known}
    model = {name: value for name, value in flags.items() if name not in known}
    if data:
        settings["data"] = data
    if not resume:
        return resolve(preset or DEFAULT_PRESET, settings, model)
    if preset:
        raise click.UsageError("--resume takes the settings of the run; leave out --preset")
    return resumed(out, settings, model)
