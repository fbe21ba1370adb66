"""Every setting of a training run, as one frozen, validated value.

Flags of `edgelm train`, a TOML preset and Python callers fill the same fields, and the resolved values
are written to the run's folder as `config.toml`, which is a preset again.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from edgelm.config import ModelConfig
from edgelm_runtime.assets import assets_folder
from edgelm_runtime.errors import CheckpointError, ConfigError

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "fp32", "bf16"]
DecodeErrors = Literal["skip", "replace"]
Loss = Literal["answers", "all"]
Decay = Literal["cosine", "linear"]
ObjectiveName = Literal["likelihood", "dpo"]
BUDGETS = ("steps", "tokens", "epochs", "minutes")
DEFAULT_MINUTES = 10.0
TEACHING = "teach"
"""The preset for going on from a model, where none is named."""
MOST_REPEATS = 1000
LARGEST_VOCABULARY, MOST_STEPS, LARGEST_BATCH, LARGEST_SEED = 1 << 20, 1 << 53, 1 << 20, (1 << 63) - 1


def _setting(default: Any, group: str, about: str) -> Any:
    """A field whose description is also the help of its flag."""
    return field(default=default, metadata={"help": about, "group": group})


_data = partial(_setting, group="Data")
_budget = partial(_setting, group="Budget")
_optimiser = partial(_setting, group="Optimiser")
_teaching = partial(_setting, group="Teaching")
_computation = partial(_setting, group="Computation")
_output = partial(_setting, group="Output")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a run apart from the architecture. Raises ConfigError (a ValueError)."""

    data: tuple[str, ...] = _data((), about="Files, folders, globs, - or @stdlib.")
    include: tuple[str, ...] = _data((), about="In folders, take only files that match this pattern.")
    exclude: tuple[str, ...] = _data(
        (), about="In folders, leave out files and folders that match this pattern."
    )
    weight: tuple[str, ...] = _data(
        (), about="PATTERN=N: take files that match this pattern N times in each epoch."
    )
    field: str = _data("text", about="Field with the text, in JSON lines and parquet.")
    encoding: str = _data("utf-8", about="Encoding of the files.")
    decode_errors: DecodeErrors = _data(  # noqa: RUF009
        "skip", about="Leave out text with bytes of another encoding, or replace them."
    )
    skip_bad: int = _data(
        0, about="Number of bad JSON lines or chats that are left out; one more is an error."
    )
    holdout: float = _data(0.05, about="Share of the documents held out to measure the model.")
    tokenizer: str = _data(
        "bpe", about="bpe (trained on the data), bytes, a tiktoken encoding, or a saved file."
    )
    vocab_size: int = _data(4096, about="Maximum size of a trained tokenizer.")
    init_from: str = _data(
        "", about="Model to start from: whatever `edgelm export` takes. It gives architecture and tokenizer."
    )

    steps: int = _budget(0, about="Optimiser steps.")
    tokens: int = _budget(0, about="Training tokens.")
    epochs: float = _budget(0.0, about="Passes over the data.")
    minutes: float = _budget(0.0, about="Minutes of training.")

    batch_size: int = _optimiser(8, about="Sequences per step, over all processes.")
    accumulation: int = _optimiser(1, about="Parts that a batch is computed in, to save memory.")
    learning_rate: float = _optimiser(1e-3, about="Peak learning rate of AdamW.")
    matrix_rate: float = _optimiser(
        0.0, about="Peak learning rate of Muon, for the matrices of the blocks; 0: AdamW for these too."
    )
    momentum: float = _optimiser(0.95, about="Muon's decay of the mean gradient.")
    warmup: float = _optimiser(0.02, about="Share of the budget in which the learning rate rises.")
    cooldown: float = _optimiser(
        1.0, about="Share of the budget in which the learning rate falls; before that it is the peak."
    )
    decay: Decay = _optimiser("cosine", about="How the learning rate falls.")  # noqa: RUF009
    final_fraction: float = _optimiser(0.05, about="Learning rate at the end, as a share of the peak.")
    weight_decay: float = _optimiser(0.1, about="Weight decay of matrices and embeddings.")
    beta1: float = _optimiser(0.9, about="AdamW's decay of the mean gradient.")
    beta2: float = _optimiser(0.95, about="AdamW's decay of the mean squared gradient.")
    clip: float = _optimiser(1.0, about="Maximum norm of the gradient; 0: no clipping.")

    loss: Loss = _teaching("answers", about="Learn the assistant's tokens of a chat, or all.")  # noqa: RUF009
    chat_template: str = _teaching(
        "", about="Template for a model without one, or instead of its own: plain, chatml, or a Jinja file."
    )
    lora: int = _teaching(
        -1,
        about="Train low-rank adapters of this rank and merge them; 0: all weights; "
        "-1: adapters of rank 16 for a given model of half a billion weights or more.",
    )
    objective: ObjectiveName = _teaching(  # noqa: RUF009
        "likelihood", about="dpo learns from pairs of chosen and rejected answers."
    )
    dpo_beta: float = _teaching(0.1, about="How closely dpo stays with the model it started from.")

    device: Device = _computation("auto", about="Where to train.")  # noqa: RUF009
    precision: Precision = _computation(  # noqa: RUF009
        "auto", about="auto: bf16 (by autocast) where the processor has it."
    )
    compile: bool = _computation(False, about="Compile the model with torch.compile.")
    gradient_checkpointing: bool = _computation(
        False, about="Recompute activations instead of keeping them, to save memory."
    )
    seed: int = _computation(0, about="Seed of initial weights, order of the data, and dropout.")

    validations: int = _output(20, about="How often the model is measured and saved over the run.")
    val_tokens: int = _output(65_536, about="Held-out tokens to measure on; at the end, ten times as many.")
    sample_prompt: str = _output("", about="Prompt of the sample at the end; empty starts a new document.")

    def __post_init__(self) -> None:
        for name, low, high in (
            ("steps", 0, MOST_STEPS), ("tokens", 0, MOST_STEPS), ("skip_bad", 0, MOST_STEPS),
            ("batch_size", 1, LARGEST_BATCH), ("accumulation", 1, LARGEST_BATCH), ("lora", -1, 1 << 14),
            ("validations", 1, 1_000_000), ("val_tokens", 1, MOST_STEPS), ("seed", 0, LARGEST_SEED),
            ("vocab_size", 1, LARGEST_VOCABULARY),
        ):  # fmt: skip
            value = getattr(self, name)
            _check(name, low <= value <= high, value, f"give a whole number from {low} to {high}")
        for name in ("beta1", "beta2", "momentum", "warmup"):
            _check(name, 0 <= getattr(self, name) < 1, getattr(self, name), "give a number from 0 up to 1")
        for name in ("minutes", "epochs", "weight_decay", "clip", "matrix_rate"):
            value = getattr(self, name)
            _check(name, 0 <= value < math.inf, value, "give a number of at least 0")
        for name in ("learning_rate", "dpo_beta"):
            value = getattr(self, name)
            _check(name, 0 < value < math.inf, value, "give a number above 0")
        _check("holdout", 0 < self.holdout <= 0.5, self.holdout, "give a number above 0, up to 0.5")
        for name in ("final_fraction", "cooldown"):
            value = getattr(self, name)
            _check(name, 0 <= value <= 1, value, "give a number from 0 to 1")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            _check(name, value in choices, value, f"choose {', '.join(choices)}")
        _check("field", bool(self.field), self.field, "name a field")
        for item in self.weight:
            pattern, _, times = item.rpartition("=")
            holds = bool(pattern) and times.isascii() and times.isdigit() and 1 <= int(times) <= MOST_REPEATS
            _check("weight", holds, item, f"give PATTERN=N with N from 1 to {MOST_REPEATS}")
        if len(given := [name for name in BUDGETS if getattr(self, name)]) > 1:
            raise ConfigError(f"{' and '.join(given)} are given", "give one budget")
        if not given:
            object.__setattr__(self, "minutes", DEFAULT_MINUTES)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; sequences are lists."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run: its settings, and the architecture without the vocabulary's size (which the tokenizer
    decides). `model` is empty where `init_from` brings the architecture."""

    training: TrainingConfig
    model: dict[str, Any]

    def model_config(self, vocab_size: int) -> ModelConfig:
        return ModelConfig.from_dict({**self.model, "vocab_size": vocab_size})

    def to_toml(self) -> str:
        """A preset that gives this run again."""
        settings = self.training.to_dict()
        lines = [f"{name} = {_toml(value)}" for name, value in settings.items()]
        if self.model:
            lines += ["", "[model]"]
            lines += [f"{name} = {_toml(value)}" for name, value in self.model.items() if value is not None]
        return "\n".join(lines) + "\n"


_CHOICES = {
    "device": get_args(Device), "precision": get_args(Precision), "decode_errors": get_args(DecodeErrors),
    "decay": get_args(Decay), "loss": get_args(Loss), "objective": get_args(ObjectiveName),
}  # fmt: skip
DECIDED = ("tokenizer", "vocab_size", "init_from", "chat_template", "lora", "objective", "matrix_rate")
"""Settings that a saved model or optimiser has used up."""


def resumed(out: Path, settings: Mapping[str, Any], model: Mapping[str, Any]) -> RunConfig:
    """The run saved in `out` with `settings` over it. Raises ConfigError for what can no longer change,
    CheckpointError where there is no run."""
    from edgelm.checkpoint import LAST, SETTINGS, surviving

    saved = surviving(out / LAST) / SETTINGS
    if not saved.is_file():
        raise CheckpointError(f"{out} holds no run to resume", "start one without --resume")
    if fixed := [name for name in (*settings, *model) if name in DECIDED or name in model]:
        raise ConfigError(f"{', '.join(fixed)} cannot change in a run that is resumed", "leave it out")
    return resolve(saved, settings)


def resolve(
    preset: str | Path | None,
    settings: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
) -> RunConfig:
    """A preset (a name in `models/`, a TOML file, or nothing) with `settings` and `model` fields over it.

    A budget in `settings` replaces the preset's, of whatever kind. Raises ConfigError.
    """
    settings, model = dict(settings or {}), dict(model or {})
    base = read_preset(preset) if preset is not None else {}
    base_model = base.pop("model", {})
    if not isinstance(base_model, dict):
        raise ConfigError(f"model is {base_model!r}", "make it a table, [model]")
    if any(settings.get(name) for name in BUDGETS):
        base = {name: value for name, value in base.items() if name not in BUDGETS}
    training = _training_config({**base, **settings})
    if training.init_from:
        if fixed := [*model, *(name for name in settings if name == "vocab_size")]:
            raise ConfigError(f"{', '.join(fixed)} cannot be set with init_from", "the checkpoint decides it")
        return RunConfig(training=training, model={})
    run = RunConfig(training=training, model={**base_model, **model})
    if "vocab_size" in run.model:
        raise ConfigError(
            "vocab_size is set under [model]", "set it at the top; the tokenizer decides the rest"
        )
    complete = run.model_config(vocab_size=1).to_dict()  # any size will do to check and fill in the rest
    complete.pop("vocab_size")
    return replace(run, model=complete)


def _training_config(values: Mapping[str, Any]) -> TrainingConfig:
    known = {item.name: item for item in fields(TrainingConfig)}
    if unknown := sorted(set(values) - set(known)):
        raise ConfigError(
            f"unknown setting {', '.join(unknown)}", f"known are {', '.join(known)} and [model]"
        )
    checked: dict[str, Any] = {
        name: _like(known[name].default, name, value) for name, value in values.items()
    }
    return TrainingConfig(**checked)


def _like(default: object, name: str, value: object) -> object:
    """`value` in the type of the field's default. Raises ConfigError where it is of another kind."""
    if isinstance(default, tuple) and isinstance(value, (list, tuple)):
        if not all(isinstance(item, str) for item in value):
            raise ConfigError(f"{name} is {value!r}", "give a list of texts")
        return tuple(value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConfigError(f"{name} is too large", "give a smaller number") from None
    if type(value) is not type(default):
        raise ConfigError(f"{name} is {value!r}", f"give a {type(default).__name__}")
    return value


def read_preset(preset: str | Path) -> dict[str, Any]:
    """The values of a TOML preset. Raises ConfigError where there is none or it is not TOML."""
    path = Path(preset)
    if not path.suffix:
        path = assets_folder() / f"{preset}.toml"
    known = ", ".join(sorted(found.stem for found in assets_folder().glob("*.toml")))
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"there is no preset {preset}", f"give a TOML file or one of: {known}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a preset: {error}", "mend the TOML") from error


def _check(name: str, holds: bool, value: object, remedy: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value!r}", remedy)


def _toml(value: object) -> str:
    """One value as TOML. JSON's strings, numbers and lists are TOML's too, but for DEL and dictionaries."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name} = {_toml(item)}" for name, item in value.items() if item is not None)
        return f"{{ {inner} }}"
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
