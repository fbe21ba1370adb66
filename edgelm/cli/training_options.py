"""The flags of `edgelm train`: one for each setting of a run, in groups, with the defaults that hold."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from typing import Any

import click

from edgelm.config import ModelConfig
from edgelm.training.config import BUDGETS, TrainingConfig, resolve

DEFAULT_PRESET = "small"
GENERAL, ARCHITECTURE = "Run", "Architecture"
# Fields of the architecture that have a flag. Of the others, the tokenizer decides one and three are tables,
# which a TOML preset can hold.
_ARCHITECTURE = {
    "context_length": "Maximum number of tokens that the model sees.",
    "width": "Features of the hidden states.",
    "num_layers": "Number of blocks.",
    "num_heads": "Attention heads.",
    "num_kv_heads": "Key-value heads; 0: as many as attention heads.",
    "head_dim": "Features of a head; 0: width / heads.",
    "mlp_width": "Features inside the MLP; 0: 4 x width.",
    "norm": "Kind of normalisation.",
    "norm_eps": "Epsilon of the normalisation.",
    "norm_bias": "Bias of a layernorm.",
    "activation": "Activation of the MLP.",
    "gated_mlp": "MLP with a gate, such as SwiGLU.",
    "qkv_bias": "Biases of queries, keys and values.",
    "attention_bias": "Bias of the attention's output projection.",
    "mlp_bias": "Biases of the MLP.",
    "head_bias": "Bias of the output head.",
    "tied_head": "Use the token embedding as the output head.",
    "position": "Learned or rotary positions.",
    "rotary_dim": "Features of a head that are rotated; 0: all.",
    "rope_theta": "Base of the rotary frequencies.",
    "sliding_window": "Tokens that a local layer sees; 0: all.",
    "local_rope_theta": "Base of the rotary frequencies in local layers; 0: the same.",
    "attention_scale": "Factor on query-key products; 0: 1 / sqrt(head_dim).",
    "query_key_norm": "Normalise queries and keys.",
    "query_key_norm_joint": "Normalise the queries of all heads together, and the keys.",
    "query_key_norm_rotated": "Normalise queries and keys after the rotation, not before it.",
    "parallel_residual": "Attention and MLP from the same input.",
    "pre_norm": "Normalise the inputs of attention and MLP.",
    "post_norm": "Normalise the outputs of attention and MLP too.",
    "embedding_scale": "Factor on token embeddings.",
    "attention_softcap": "Soft cap on attention scores; 0: none.",
    "logit_softcap": "Soft cap on logits; 0: none.",
    "dropout": "Dropout probability.",
    "init": "Initial weights: GPT-2's, or PyTorch's own.",
}
Function = Callable[..., None]


class Setting(click.Option):
    """An option that `--help` lists in a group."""

    def __init__(self, *names: Any, group: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group


class GroupedCommand(click.Command):
    """A command whose `--help` lists its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(parameter, "group", GENERAL), []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def setting_flags(function: Function) -> Function:
    """Add a flag for each setting. What is not given is None, and stays as the preset says."""
    run = resolve(DEFAULT_PRESET)
    about = {item.name: item.metadata["help"] for item in fields(TrainingConfig) if item.name != "data"}
    groups = {item.name: item.metadata["group"] for item in fields(TrainingConfig)}
    for of, texts, defaults in (
        (ModelConfig, _ARCHITECTURE, run.model),
        (TrainingConfig, about, run.training.to_dict()),
    ):
        kinds = typing.get_type_hints(of)
        for item in reversed([item for item in fields(of) if item.name in texts]):
            shown = _help(item.name, kinds[item.name], texts[item.name], defaults)
            function = _flag(item, kinds[item.name], shown, groups.get(item.name, ARCHITECTURE))(function)
    return function


def _help(name: str, kind: Any, text: str, defaults: Mapping[str, Any]) -> str:
    value = defaults[name]
    if value in ("", []) or (name in BUDGETS and not value):
        return text
    if isinstance(value, bool):
        value = name.replace("_", "-") if value else f"no-{name.replace('_', '-')}"
    elif typing.get_args(kind):
        value = f"{value}".replace("_", "-")  # as the choices are shown
    return f"{text}  [default: {value:g}]" if isinstance(value, float) else f"{text}  [default: {value}]"


def _flag(item: Field[Any], kind: Any, about: str, group: str) -> Callable[[Function], Function]:
    name = item.name.replace("_", "-")
    settings: dict[str, Any] = {"cls": Setting, "group": group}
    if kind is bool:
        return click.option(f"--{name}/--no-{name}", item.name, default=None, help=about, **settings)
    if kind == tuple[str, ...]:
        text = f"{about} Repeat the option for several."
        return click.option(
            f"--{name}",
            item.name,
            multiple=True,
            metavar="PATTERN=N" if name == "weight" else "PATTERN",
            help=text,
            **settings,
        )
    choices = typing.get_args(kind)
    return click.option(
        f"--{name}", item.name, type=click.Choice(choices) if choices else kind, help=about, **settings
    )
