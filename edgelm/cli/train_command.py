"""`edgelm train`: text in, a folder with checkpoints and figures out."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from edgelm.cli.arguments import folder_option
from edgelm.cli.training_options import DEFAULT_PRESET, GroupedCommand, setting_flags
from edgelm.training.config import TEACHING, RunConfig, TrainingConfig, resolve, resumed


@click.command(name="train", cls=GroupedCommand)
@click.argument("data", nargs=-1)
@folder_option("Folder of the run.")
@click.option(
    "--preset",
    metavar="NAME|FILE",
    help=f"Settings: a name in models/, or a TOML file.  [default: {DEFAULT_PRESET}; {TEACHING} with --init-from]",
)
@click.option("--resume", is_flag=True, help="Continue the run in the folder.")
@click.option("--overwrite", is_flag=True, help="Replace the run in the folder.")
@setting_flags
def command(
    data: tuple[str, ...], out: Path, preset: str | None, resume: bool, overwrite: bool, **given: Any
) -> None:
    """Train a model on your text, or teach one with your chats.

    DATA are files, folders, globs, - for standard input, or @stdlib for Python's own source code. JSON lines
    (.jsonl, .ndjson) and .parquet hold a document or a chat per line or row, any other file is one document;
    .gz and .zst are decompressed. Chats are recognised by their fields: messages, conversations, prompt and
    completion, instruction and output, chosen and rejected.

    Every setting is an option or a line of a TOML preset; an option wins. The defaults shown are those of
    the preset small.
    """
    from edgelm.cli.training_display import Display
    from edgelm.training.run import train

    run = _run(data, out.expanduser(), preset, resume, given)
    with Display(sys.stderr) as display:
        outcome = train(run, out.expanduser(), resume=resume, overwrite=overwrite, reporter=display)
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
        usual = TEACHING if settings.get("init_from") else DEFAULT_PRESET
        return resolve(preset or usual, settings, model)
    if preset:
        raise click.UsageError("--resume takes the settings of the run; leave out --preset")
    return resumed(out, settings, model)
