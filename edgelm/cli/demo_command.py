"""`edgelm demo`: every step from text to a file that runs, on text that every machine has."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from edgelm.cli.arguments import folder_option

FOLDER = "edgelm-demo"
PROMPTS = (
    "def read_json(path):",
    "class Stack:\n    def push(self, item):",
    "    for line in lines:\n",
    "import ",
)


@click.command("demo")
@folder_option(f"Folder to work in.  [default: {FOLDER}, replaced each time]", required=False)
@click.option("--minutes", type=float, default=1.25, help="Minutes of training.  [default: 1.25]")
@click.option("--overwrite", is_flag=True, help="Replace a run that is in the folder.")
def command(out: Path | None, minutes: float, overwrite: bool) -> None:
    """Train a small model on Python's standard library, export it, and let it write code.

    Takes about two minutes on two CPU cores.
    """
    import edgelm
    from edgelm.checkpoint import load_checkpoint
    from edgelm.cli.training_display import Display
    from edgelm.training.config import read_preset, resolve
    from edgelm.training.run import train
    from edgelm_export import export_checkpoint

    overwrite = overwrite or out is None
    out = out or Path(FOLDER)
    corpus = {name: read_preset("python")[name] for name in ("data", "include", "exclude")}
    run = resolve("tiny", {**corpus, "minutes": minutes, "sample_prompt": PROMPTS[0]})
    model = out / "model.onnx"

    with Display(sys.stderr) as display:
        display.note("1. Training on the source code of Python's standard library")
        outcome = train(run, out, overwrite=overwrite, reporter=display)
        if not outcome.finished:
            sys.exit(130)
        display.note("2. Exporting, and comparing with PyTorch")
        export_checkpoint(load_checkpoint(out), model, report=display.note)
        display.note(f"   {model}, {model.stat().st_size / 1e6:.1f} MB")
        display.note("3. Completions from the exported file, without PyTorch")
    with edgelm.load(model) as lm:
        for prompt in PROMPTS:
            click.echo(f"\n{prompt}", nl=False)
            for piece in lm.stream(prompt, max_new_tokens=60, temperature=0.6, seed=1):
                click.echo(piece.text, nl=False)
                sys.stdout.flush()
            click.echo()
    click.echo(f'\nNow try: edgelm run {model} "def main("')
    click.echo(f"In a browser: edgelm web {model} -o {out / 'page'}")
