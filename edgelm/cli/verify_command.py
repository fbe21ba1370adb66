"""`edgelm verify MODEL`: does the file still compute what it was exported with?"""

from __future__ import annotations

import math
from pathlib import Path

import click


@click.command("verify")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-e", "--provider", default="auto", show_default=True, help="auto, cpu, cuda or another provider."
)
@click.option("--threads", type=int, show_default="what this process may use", help="Number of CPU threads.")
@click.option("--against", metavar="SOURCE", help="Compare with this checkpoint in PyTorch as well.")
@click.option(
    "--atol", type=float, show_default="as at the export",
    help="With --against and an fp32 model: largest absolute difference from PyTorch's logits.",
)  # fmt: skip
def command(model: Path, provider: str, threads: int | None, against: str | None, atol: float | None) -> None:
    """Check that the model file MODEL is as it was exported and still gives the same results.

    Checks every byte of graph, weights and metadata, and replays the prompts stored in the file. PyTorch is needed
    with --against only.
    """
    from edgelm_runtime.reports.verify import verify
    from edgelm_runtime.validation import number

    if atol is not None:
        number("atol", atol, 0, math.inf, open_low=True)
        if against is None:
            raise click.UsageError("--atol needs --against")
    click.echo(f"ok: {verify(model, provider, threads)}")
    if against is not None:
        from edgelm.importers import load_source
        from edgelm_export import compare_with_checkpoint

        click.echo(f"ok: {compare_with_checkpoint(model, load_source(against), atol=atol)}")
