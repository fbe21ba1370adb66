"""`edgelm web`: a model as a web page."""

from __future__ import annotations

from pathlib import Path

import click

from edgelm.cli.arguments import folder_option


@click.command("web")
@click.argument("model", required=False)
@folder_option("Folder to write the page into.")
@click.option("--title", help="What the page is called. [the model's name]")
def command(model: str | None, out: Path, title: str | None) -> None:
    """Write a web page that runs MODEL (default: the one that comes along) in the browser, without a server's help.

    The folder holds all that is needed, and works without a network once it is loaded. Any web server can serve it.
    """
    from edgelm.web_page import write_page
    from edgelm_runtime.assets import assets_folder
    from edgelm_runtime.loading import BUNDLED

    written = write_page(model or assets_folder() / BUNDLED, out, title)
    size = sum(path.stat().st_size for path in written)
    click.echo(f"{out}: {len(written)} files, {size / 1e6:.1f} MB")
    click.echo(f"To look at it: python -m http.server -d {out}, and open http://localhost:8000")
