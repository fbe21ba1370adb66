"""`edgelm batch`: answer a file of requests."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgelm.cli.arguments import STANDARD_INPUT, expanded
from edgelm.cli.options import generation_options, generation_values, load_model, loading_options
from edgelm_runtime.errors import OptionError, OutputError

if TYPE_CHECKING:
    from edgelm_runtime import Engine, LanguageModel


class Part(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on only
    """i/n: the i-th of n parts."""

    name = "i/n"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        first, _, parts = value.partition("/")
        if not (first.isdecimal() and parts.isdecimal() and 1 <= int(first) <= int(parts)):
            self.fail(f"{value!r} is not a part such as 1/4", param, ctx)
        return int(first), int(parts)


@click.command("batch")
@click.argument("words", metavar="[MODEL] IN.jsonl", nargs=-1, required=True)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="File of the answers.")
@click.option(
    "--part",
    type=Part(),
    default="1/1",
    show_default=True,
    help="Every n-th request from the i-th on.",
)
@click.option("--parallel", default=8, show_default=True, help="Requests that are answered together.")
@generation_options
@loading_options
def command(
    words: tuple[str, ...], output: Path, part: tuple[int, int], parallel: int, **options: Any
) -> None:
    """Answer the requests in IN.jsonl (- is standard input) with MODEL; without one, with the model that ships with
    edgelm.

    A line is {"prompt": "..."} or {"messages": [...]} with any options of generation, or a line of OpenAI's batch
    files (needs the extra serve). Each answer is added to the output when it is finished. Started again, the same
    command goes on with the requests that have no answer yet.
    """
    from edgelm_runtime.serving.batch_file import answer_lines

    if len(words) > 2:
        raise click.UsageError(f"unexpected argument {words[2]!r}")
    lines = _lines(words[-1])
    defaults = generation_values(options)
    with load_model(words[0] if len(words) == 2 else None, options) as lm:
        settings = {"options": defaults, "model": dict(lm.info.digest) or lm.info.config}
        with (
            lm.engine(parallel, queue=1024) as engine,
            click.progressbar(
                length=len(range(part[0] - 1, len(lines), part[1])),
                label="answering",
                file=sys.stderr if sys.stderr.isatty() else io.StringIO(),
            ) as bar,
        ):
            tally = answer_lines(
                lines, output, _answers(lm, engine, defaults),
                settings=settings, part=part, workers=2 * parallel, progress=bar.update,
            )  # fmt: skip
    earlier = f", {tally.earlier} of them by earlier runs" if tally.earlier else ""
    click.echo(f"{tally.requests} requests are answered in {output}{earlier}", err=True)
    if tally.failed:
        raise OutputError(f"{tally.failed} requests failed", f'their answers in {output} have an "error"')


def _lines(source: str) -> list[bytes]:
    try:
        content = sys.stdin.buffer.read() if source == STANDARD_INPUT else Path(expanded(source)).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"cannot read {source[:200]}: {reason}", "check the path") from error
    return content.removeprefix(b"\xef\xbb\xbf").split(b"\n")


def _answers(lm: LanguageModel, engine: Engine, defaults: dict[str, Any]) -> Any:
    """A function from a request to its answer, for both kinds of lines."""
    from edgelm_runtime.serving.batch_file import answer_prompt

    apps: list[Any] = []

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "body" not in request:
            return answer_prompt(engine, request, defaults)
        from edgelm_server.in_process import answer_batch_line, batch_app

        if not apps:
            apps.append(batch_app(lm, engine))
        return answer_batch_line(apps[0], request, defaults)

    return answer
