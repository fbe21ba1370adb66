"""`edgelm chat`: talk with a model."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgelm.cli.arguments import expanded
from edgelm.cli.options import generation_options, generation_values, load_model, loading_options
from edgelm_runtime.atomic_files import write_file
from edgelm_runtime.errors import EdgelmError, OutputError

if TYPE_CHECKING:
    from edgelm_runtime import Conversation

HELP = """\
/help         this list
/reset        forget the conversation, and keep the system message
/save FILE    write the conversation as JSON
/exit         leave (so does Ctrl-D)
Ctrl-C        stop the answer"""


@click.command("chat")
@click.argument("model", required=False)
@click.option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@click.option(
    "--template-option", multiple=True, metavar="NAME=VALUE",
    help="Set a variable of the model's chat template, as in enable_thinking=false. Repeat the option for several.",
)  # fmt: skip
@generation_options
@loading_options
def command(model: str | None, system: str | None, template_option: tuple[str, ...], **options: Any) -> None:
    """Talk with MODEL, a file ending in .onnx; without one, with the model that ships with edgelm.

    Each line is a message; lines may also come from a pipe. /help lists what else there is.
    """
    from edgelm_runtime import Conversation
    from edgelm_runtime.generation.options import split_options

    values = generation_values(options)
    with load_model(model, options) as lm:
        split_options(values)  # what is wrong is said before the first message, not after it
        if template_option:
            values["template_options"] = dict(map(_name_and_value, template_option))
            lm.chat_prompt([{"role": "user", "content": "?"}], template_options=values["template_options"])
        talk(Conversation(lm, system), values)


def _name_and_value(given: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON where it is that, else as text."""
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{given!r} is not NAME=VALUE", param_hint="--template-option")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def talk(conversation: Conversation, values: dict[str, Any]) -> None:
    """Read messages and answer them until the input ends or asks for it."""
    interactive = sys.stdin.isatty()
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if interactive:
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # gives input() arrow keys and a history
        click.echo("/help for help, Ctrl-D to leave", err=True)
    while True:
        try:
            line = input("> " if interactive else "").removeprefix("\ufeff").strip()
        except EOFError:
            break
        except KeyboardInterrupt:
            click.echo(err=True)
            continue
        if line in ("/exit", "/quit"):
            return
        if line.startswith("/"):
            _obey(conversation, line)
        elif line:
            _answer(conversation, line, values)
    if interactive:
        click.echo(err=True)


def _obey(conversation: Conversation, line: str) -> None:
    """Carry out a line that begins with a slash."""
    name, _, argument = line.partition(" ")
    if name == "/reset":
        conversation.reset()
    elif name == "/save" and argument.strip():
        path = Path(expanded(argument.strip()))
        text = json.dumps(conversation.messages, indent=2, ensure_ascii=False)
        try:
            write_file(path, f"{text}\n")
        except OutputError as error:
            click.echo(f"edgelm: {error}", err=True)
    elif name == "/save":
        click.echo("edgelm: /save needs the name of a file", err=True)
    else:
        if name != "/help":
            click.echo(f"edgelm: there is no {name}", err=True)
        click.echo(HELP, err=True)


def _answer(conversation: Conversation, line: str, values: dict[str, Any]) -> None:
    """Stream the answer; Ctrl-C ends it early."""
    forgotten, reason = conversation.forgotten, None
    try:
        with contextlib.closing(conversation.ask(line, **values)) as pieces:
            started = False
            for piece in pieces:
                text = piece.text if started else piece.text.lstrip()
                started = started or bool(text)
                click.echo(text, nl=False)
                sys.stdout.flush()
                reason = piece.finish_reason
    except KeyboardInterrupt:
        pass  # what was said so far stays in the conversation
    except EdgelmError as error:
        if not sys.stdin.isatty():
            raise
        click.echo(f"edgelm: {error}", err=True)
        return
    click.echo()
    if reason == "length":
        click.echo("edgelm: cut off; -n allows more tokens", err=True)
    if conversation.forgotten > forgotten:
        click.echo("edgelm: the context is full; the oldest exchange is forgotten", err=True)
