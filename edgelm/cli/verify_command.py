"""`edgelm verify MODEL`: does the file still compute what it was exported with?"""

from __future__ import annotations

from pathlib import Path

import click


@click.command("verify")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-e", "--provider", default="auto", show_default=True, help="auto, cpu, cuda or another provider."
)
@click.option("--threads", type=int, help="Threads (default: what this process may use).")
@click.option("--against", metavar="SOURCE", help="Also compare with this checkpoint in PyTorch.")
@click.option("--atol", type=float, help="With --against: largest difference of a logit that is allowed.")
def command(model: Path, provider: str, threads: int | None, against: str | None, atol: float | None) -> None:
    """Check that the model file MODEL is what was exported and still gives the same results.

    Checks every byte of graph, weights and metadata, and replays the prompts that the file carries. Needs no
    PyTorch, except with --against.
    """
    from edgelm_runtime.reports.verify import verify

    if atol is not None and against is None:
        raise click.UsageError("--atol belongs to --against")
    click.echo(f"ok: {verify(model, provider, threads)}")
    if against is not None:
        from edgelm.importers import load_source
        from edgelm_export import compare_with_checkpoint

        click.echo(f"ok: {compare_with_checkpoint(model, load_source(against), atol=atol)}")
