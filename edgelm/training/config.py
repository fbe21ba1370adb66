"""Every setting of a training run, as one frozen, validated value.

Flags of `edgelm train`, a TOML preset and Python callers fill the same fields, and the resolved values
are written beside the run as `config.toml`, which is a preset again.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from edgelm.config import ModelConfig
from edgelm_runtime.assets import assets_folder
from edgelm_runtime.errors import CheckpointError, ConfigError, OutputError

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "fp32", "bf16"]
BUDGETS = ("steps", "tokens", "minutes")
DEFAULT_MINUTES = 10.0
SAVED = "config.toml"
"""The resolved settings in a run's folder."""


def _setting(default: Any, about: str) -> Any:
    """A field whose description is also the help of its flag."""
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of a run apart from the architecture. Raises ConfigError (a ValueError)."""

    data: tuple[str, ...] = _setting((), "Files, folders, globs, - or @stdlib.")
    include: tuple[str, ...] = _setting((), "In folders, take only files that match this pattern.")
    exclude: tuple[str, ...] = _setting(
        (), "In folders, leave out files and folders that match this pattern."
    )
    field: str = _setting("text", "Where the text is in a line of a .jsonl file.")
    holdout: float = _setting(0.05, "Share of the documents that is held out to measure the model.")
    tokenizer: str = _setting(
        "bpe", "bpe (trained on the data), bytes, a tiktoken encoding, or a saved file."
    )
    vocab_size: int = _setting(4096, "Most tokens that a trained tokenizer may have.")
    init_from: str = _setting("", "Checkpoint folder that gives architecture, weights and tokenizer.")

    steps: int = _setting(0, "Budget: optimiser steps.")
    tokens: int = _setting(0, "Budget: training tokens.")
    minutes: float = _setting(0.0, f"Budget: minutes of training ({DEFAULT_MINUTES:g} where none is given).")
    batch_size: int = _setting(8, "Sequences per optimiser step, over all processes.")
    accumulation: int = _setting(1, "Parts in which a process works through its share of a batch.")
    learning_rate: float = _setting(1e-3, "Peak learning rate.")
    warmup: float = _setting(0.02, "Share of the budget in which the learning rate rises.")
    final_fraction: float = _setting(0.05, "What the learning rate falls to, as a share of the peak.")
    weight_decay: float = _setting(0.1, "Decay of weight matrices, embeddings among them.")
    beta1: float = _setting(0.9, "AdamW's decay of the mean gradient.")
    beta2: float = _setting(0.95, "AdamW's decay of the mean squared gradient.")
    clip: float = _setting(1.0, "Greatest norm of the gradient; 0 leaves it alone.")

    device: Device = _setting("auto", "Where to train.")  # noqa: RUF009
    precision: Precision = _setting("auto", "bf16 is autocast; auto: where it is faster.")  # noqa: RUF009
    compile: bool = _setting(False, "Compile the model with torch.compile.")
    gradient_checkpointing: bool = _setting(False, "Compute activations twice instead of keeping them.")
    seed: int = _setting(0, "Fixes initial weights, batches and dropout.")

    validations: int = _setting(20, "Times that the model is measured and saved over the run.")
    val_tokens: int = _setting(
        65_536, "Held-out tokens to measure on each time; at the end, ten times as many."
    )
    sample_prompt: str = _setting("", "What the sample at the end continues; empty starts a new document.")

    def __post_init__(self) -> None:
        for name in ("steps", "tokens"):
            _check(name, getattr(self, name) >= 0, getattr(self, name), "give a whole number")
        for name in ("batch_size", "accumulation", "validations", "val_tokens"):
            _check(name, getattr(self, name) >= 1, getattr(self, name), "give a whole number of at least 1")
        for name in ("beta1", "beta2", "warmup"):
            _check(name, 0 <= getattr(self, name) < 1, getattr(self, name), "give a number from 0 up to 1")
        for name in ("minutes", "weight_decay", "clip"):
            value = getattr(self, name)
            _check(name, math.isfinite(value) and value >= 0, value, "give a number of at least 0")
        _check(
            "learning_rate", 0 < self.learning_rate < math.inf, self.learning_rate, "give a number above 0"
        )
        _check("holdout", 0 < self.holdout <= 0.5, self.holdout, "give a number above 0, up to 0.5")
        _check(
            "final_fraction", 0 <= self.final_fraction <= 1, self.final_fraction, "give a number from 0 to 1"
        )
        _check(
            "device", self.device in get_args(Device), self.device, f"choose {', '.join(get_args(Device))}"
        )
        choices = get_args(Precision)
        _check("precision", self.precision in choices, self.precision, f"choose {', '.join(choices)}")
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

    def save(self, path: Path) -> None:
        """Write as TOML. Raises OutputError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.to_toml(), encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}", "choose another folder") from error


DECIDED = ("tokenizer", "vocab_size", "init_from")
"""Settings that a saved model has used up."""


def resumed(out: Path, settings: Mapping[str, Any], model: Mapping[str, Any]) -> RunConfig:
    """The run saved in `out` with `settings` over it. Raises ConfigError for what can no longer change,
    CheckpointError where there is no run."""
    if not (out / SAVED).is_file():
        raise CheckpointError(f"{out} holds no run to resume", "start one without --resume")
    if fixed := [name for name in (*settings, *model) if name in DECIDED or name in model]:
        raise ConfigError(f"{', '.join(fixed)} cannot change in a run that is resumed", "leave it out")
    return resolve(out / SAVED, settings)


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
    base_model = dict(base.pop("model", {}))
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
        return tuple(str(item) for item in value)
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(default):
        raise ConfigError(f"{name} is {value!r}", f"give a {type(default).__name__}")
    return value


def read_preset(preset: str | Path) -> dict[str, Any]:
    """The values of a TOML preset. Raises ConfigError where there is none or it is not TOML."""
    path = Path(preset)
    if not path.suffix:
        path = assets_folder() / f"{preset}.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(sorted(found.stem for found in assets_folder().glob("*.toml")))
        raise ConfigError(f"there is no preset {preset}", f"give a TOML file or one of: {known}") from error
    except ValueError as error:
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
