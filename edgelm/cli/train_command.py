"""`edgelm train`: text in, a folder with checkpoints and figures out."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import click

from edgelm.config import ModelConfig
from edgelm.training.config import RunConfig, TrainingConfig, resolve, resumed

DEFAULT_PRESET = "small"
# Fields of the architecture that have no flag: the tokenizer decides one, tables need TOML.
_NO_FLAG = {"vocab_size", "rope_scaling", "local_layers"}


def _flags(of: type, left_out: set[str], title: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A flag for every field of a dataclass, without defaults: what is not given stays as the preset says."""
    kinds = typing.get_type_hints(of)

    def add(function: Callable[..., None]) -> Callable[..., None]:
        for item in reversed([item for item in fields(of) if item.name not in left_out]):
            function = _flag(item, kinds[item.name], title)(function)
        return function

    return add


def _flag(item: Field[Any], kind: Any, title: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    name = item.name.replace("_", "-")
    about = item.metadata.get("help", title)
    if kind is bool:
        return click.option(f"--{name}/--no-{name}", item.name, default=None, help=about)
    if kind == tuple[str, ...]:
        return click.option(f"--{name}", item.name, multiple=True, help=f"{about} May be repeated.")
    shown = f"{about} [{item.default}]" if item.default not in (MISSING, "", 0) else about
    choices = typing.get_args(kind)
    return click.option(f"--{name}", item.name, type=click.Choice(choices) if choices else kind, help=shown)


@click.command(name="train")
@click.argument("data", nargs=-1)
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder of the run.")
@click.option("--preset", help=f"Name in models/ or TOML file with settings. [{DEFAULT_PRESET}]")
@click.option("--resume", is_flag=True, help="Go on with the run in --out.")
@click.option("--overwrite", is_flag=True, help="Replace the run in --out.")
@_flags(TrainingConfig, {"data"}, "")
@_flags(ModelConfig, _NO_FLAG, "Architecture.")
def command(
    data: tuple[str, ...], out: Path, preset: str | None, resume: bool, overwrite: bool, **given: Any
) -> None:
    """Train a tokenizer and a model on your text.

    DATA are files, folders, globs, - for standard input, or @stdlib for Python's own source code. A
    .jsonl file holds a document per line, any other file is one document.
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
