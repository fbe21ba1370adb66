"""`edgelm serve`: the model for every program that speaks HTTP."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from edgelm.cli.arguments import read_text
from edgelm.cli.options import load_model, loading_options
from edgelm_runtime.errors import OptionError

ABOVE_ZERO = click.FloatRange(0, 1e6, min_open=True)
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@click.command("serve")
@click.argument("model", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8080, show_default=True, help="Port to listen on; 0: a free one.")
@click.option("--parallel", default=4, show_default=True, help="Requests answered at the same time.")
@click.option("--queue", default=64, show_default=True, help="Requests that may wait; more are refused.")
@click.option(
    "--alias", multiple=True, metavar="NAME", help="The model's name in requests. [the file's name]"
)
@click.option(
    "--api-key", envvar="EDGELM_API_KEY", metavar="KEY", help="Ask for this key. [$EDGELM_API_KEY, or none]"
)
@click.option("--api-key-file", type=click.Path(path_type=Path), help="The same, from a file.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="A name that this server is reached by.")
@click.option("--cors-origin", multiple=True, metavar="ORIGIN", help="Web pages that may use it. *: all.")
@click.option(
    "--max-body",
    type=ABOVE_ZERO,
    default=4.0,
    show_default=True,
    metavar="MB",
    help="Size of a request at most.",
)
@click.option(
    "--max-time",
    type=ABOVE_ZERO,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time of a text at most.",
)
@click.option(
    "--drain",
    type=click.FloatRange(0, 86400),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time to finish at the end.",
)
@click.option("--log-prompts", is_flag=True, help="Log what is asked and answered.")
@loading_options
def command(
    model: str | None,
    *,
    host: str,
    port: int,
    parallel: int,
    queue: int,
    alias: tuple[str, ...],
    api_key: str | None,
    api_key_file: Path | None,
    allowed_host: tuple[str, ...],
    cors_origin: tuple[str, ...],
    max_body: float,
    max_time: float,
    drain: float,
    log_prompts: bool,
    **loading: Any,
) -> None:
    """Serve MODEL, a file ending in .onnx, to programs that speak OpenAI's interface; without one, the model that
    ships with edgelm.

    Open the address that is shown for a chat page. Programs use it with /v1 after it as their base URL.
    """
    # To import what serves takes about as long as to load a small model, so both happen at once.
    loader = ThreadPoolExecutor(1)
    loaded = loader.submit(load_model, model, loading)
    from edgelm_server.run import bind, serve
    from edgelm_server.settings import Settings

    settings = Settings(
        names=alias or (Path(model).stem if model else "python",),
        api_key=_api_key(api_key, api_key_file),
        allowed_hosts=(*allowed_host, host),
        cors_origins=cors_origin,
        max_body=int(max_body * 1e6),
        max_time=max_time,
        log_prompts=log_prompts,
    )
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    logging.getLogger("edgelm.server").setLevel(logging.INFO)
    with bind(host, port) as listener, loaded.result() as lm, lm.engine(parallel, queue) as engine:

        def ready() -> None:
            shown = f"[{host}]" if ":" in host else host
            click.echo(
                f"edgelm: {settings.names[0]} at http://{shown}:{listener.getsockname()[1]}, {parallel} slots x "
                f"{lm.info.context_length} tokens{_cache(engine.status().cache_bytes_limit)}",
                err=True,
            )
            if host not in LOOPBACK and settings.api_key is None:
                click.echo("edgelm: everyone who reaches this address may ask; --api-key closes it", err=True)

        serve(lm, engine, listener, settings, drain=drain, ready=ready)


def _cache(size: int) -> str:
    return f", cache up to {size / 1e6:.0f} MB" if size else ""


def _api_key(key: str | None, path: Path | None) -> str | None:
    if path is not None:
        key = read_text(path).strip()
    if key is not None and not key.strip():
        raise OptionError("the API key is empty", "give one, or leave it out")
    return key
