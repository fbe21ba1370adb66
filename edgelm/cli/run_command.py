"""`edgelm run`: continue a prompt, streaming."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgelm.cli.arguments import STANDARD_INPUT, is_model, read_once, read_text, reading_options
from edgelm.cli.options import (
    generation_options,
    generation_values,
    load_model,
    loading_options,
    parse_ids,
)
from edgelm.cli.streams import print_json

if TYPE_CHECKING:
    from edgelm_runtime import LanguageModel, Stats


@click.command()
@click.argument("words", metavar="[MODEL] [PROMPT]", nargs=-1)
@click.option("-p", "--prompt", help="The prompt.")
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Read the prompt from a file.")
@click.option(
    "--special", multiple=True, metavar="TOKEN",
    help="Special token that may be spelled out in the prompt, or all. Repeat the option for several.",
)  # fmt: skip
@click.option("--echo", is_flag=True, help="Print the prompt too.")
@click.option("--stats", "show_stats", is_flag=True, help="Print on standard error how fast it was.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end instead of text.")
@click.option(
    "--choice",
    multiple=True,
    metavar="TEXT",
    help="Generate one of these texts. Repeat the option for several.",
)
@click.option("--regex", help="Generate only text that matches this regular expression.")
@click.option(
    "--json-schema",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Generate only JSON that is valid under this schema.",
)
@reading_options
@generation_options
@loading_options
def command(words: tuple[str, ...], **options: Any) -> None:
    """Continue PROMPT with MODEL, a file ending in .onnx; without one, with the model that ships with edgelm.

    The prompt comes from the argument, -p, -f or standard input (-).
    """
    model, prompt = _model_and_prompt(words, options)
    values = generation_values(options)
    with load_model(model, options) as lm:
        given = prompt if lm.info.tokenizer is not None else parse_ids(prompt)
        values |= _constraint(options)
        special = options["special"]
        _generate(lm, prompt, given, "all" if "all" in special else special, values, options)


def _generate(
    lm: LanguageModel, prompt: str, given: Any, special: Any, values: dict[str, Any], options: dict[str, Any]
) -> None:
    from edgelm_runtime import Stats

    stats = Stats()
    texts, ids, reason = [], [], None
    shown = not options["as_json"]
    if options["echo"] and shown:
        click.echo(prompt, nl=False)
    for piece in lm.stream(given, allowed_special=special, stats=stats, **values):
        texts.append(piece.text)
        reason = piece.finish_reason
        if piece.token_id is not None:
            ids.append(piece.token_id)
        if shown:
            text = piece.text if lm.info.tokenizer is not None else _id_text(piece.token_id, len(ids))
            click.echo(text, nl=False)
            sys.stdout.flush()
    if shown:
        click.echo()
    else:
        text = "".join([prompt, *texts] if options["echo"] else texts)
        about = {"text": text, "token_ids": ids, "finish_reason": reason}
        print_json({**about, "stats": _figures(lm, stats)})
    if options["show_stats"]:
        click.echo(_sentence(lm, stats), err=True)


def _id_text(token_id: int | None, count: int) -> str:
    return "" if token_id is None else f"{token_id}" if count == 1 else f" {token_id}"


def _figures(lm: LanguageModel, stats: Stats) -> dict[str, Any]:
    derived = {"tokens_per_second": stats.tokens_per_second, "accept_rate": stats.accept_rate}
    return {"provider": lm.provider, "load_seconds": lm.load_seconds, **asdict(stats), **derived}


def _sentence(lm: LanguageModel, stats: Stats) -> str:
    return (
        f"{lm.provider}: load {lm.load_seconds:.3f} s, first token {stats.first_token_seconds:.3f} s, "
        f"{stats.tokens} tokens in {stats.seconds:.3f} s, {stats.tokens_per_second:.1f} tokens/s, "
        f"{stats.passes} passes ({stats.passes / max(stats.tokens, 1):.2f} per token), "
        f"{stats.accepted} of {stats.drafted} drafted tokens accepted ({stats.accept_rate:.0%})"
    )


def _constraint(options: dict[str, Any]) -> dict[str, Any]:
    """The constraint options that were given, by the names of `LanguageModel.generate`."""
    schema = options["json_schema"]
    given = {
        "choices": list(options["choice"]) or None,
        "regex": options["regex"],
        "json_schema": read_text(schema) if schema is not None else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _model_and_prompt(words: tuple[str, ...], options: dict[str, Any]) -> tuple[str | None, str]:
    """Tell MODEL and PROMPT apart, and find the prompt where it is not an argument.

    Of two words the first is the model. A single word is the model if it names a file or ends like a model.
    """
    prompt, file = options.pop("prompt"), options.pop("file")
    reading = {name: options.pop(name) for name in ("encoding", "decode_errors")}
    if len(words) > 2:
        raise click.UsageError(f"unexpected argument {words[2]!r}; quote a prompt of several words")
    first_is_model = len(words) == 2 or (
        len(words) == 1 and words[0] != STANDARD_INPUT and is_model(words[0])
    )
    model = words[0] if first_is_model else None
    rest = words[1:] if first_is_model else words
    sources = [source for source in (*rest, prompt, file) if source is not None]
    if len(sources) > 1:
        raise click.UsageError("the prompt is given twice; give it as argument, with -p or with -f")
    read_once([*rest, file, options["json_schema"]])
    if prompt is not None:
        return model, prompt
    if file is not None:
        return model, read_text(file, **reading)
    if rest and rest[0] != STANDARD_INPUT:
        return model, rest[0]
    if not rest and sys.stdin.isatty():
        raise click.UsageError(
            "there is no prompt; give it as argument, with -p, with -f or on standard input"
        )
    read_once([STANDARD_INPUT, options["json_schema"]])
    return model, read_text(STANDARD_INPUT, **reading)
