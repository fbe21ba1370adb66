"""`edgelm import`: a model from elsewhere as a checkpoint that training can go on from."""

from __future__ import annotations

from pathlib import Path

import click

from edgelm.cli.arguments import folder_option


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source")
@folder_option("Folder to write.")
@click.option(
    "--tokenizer",
    metavar="PATH|NAME|none",
    help="Tokenizer file, tiktoken encoding, or none for token ids only, instead of the source's own.",
)
@click.option("--adapter", metavar="FOLDER", help="PEFT's LoRA adapter to merge into a Hugging Face model.")
def command(source: str, out: Path, tokenizer: str | None, adapter: str | None) -> None:
    """Turn SOURCE into an edgelm checkpoint.

    SOURCE is a Hugging Face folder or hub name, a GGUF file, nanoGPT's ckpt.pt or a .pt file of
    train-llm-from-scratch; which one follows from its contents.
    """
    from edgelm.checkpoint import save_checkpoint
    from edgelm.cli.options import show_warnings_plainly
    from edgelm.importers import load_source

    show_warnings_plainly()
    checkpoint = load_source(source, tokenizer, adapter)
    save_checkpoint(checkpoint, out)
    config = checkpoint.config
    parameters = sum(weight.numel() for weight in checkpoint.model.parameters())
    click.echo(
        f"{out}: {parameters:,} parameters, {config.num_layers} layers, width {config.width}, "
        f"context {config.context_length}, "
        + (f"{checkpoint.tokenizer.vocab_size} tokens" if checkpoint.tokenizer else "token ids only")
    )
