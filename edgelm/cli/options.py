"""Options that several commands share: how text is generated, and how a model is loaded."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from edgelm_runtime.errors import OptionError

if TYPE_CHECKING:
    from edgelm_runtime import LanguageModel

Command = TypeVar("Command", bound=Callable[..., Any])

# A value that the user did not give is None and leaves the model file's own default in force.
GENERATION = (
    click.option("-n", "--max-new-tokens", "--max-tokens", type=int, help="Tokens to make at most. [128]"),
    click.option(
        "-t", "--temperature", "--temp", type=float, help="0 takes the likeliest token (greedy). [0]"
    ),
    click.option("-k", "--top-k", type=int, help="Choose among the k likeliest tokens. 0: all. [0]"),
    click.option("--top-p", type=float, help="Choose among the likeliest that reach this probability. [1]"),
    click.option("--min-p", type=float, help="Leave out tokens below this share of the likeliest. [0]"),
    click.option("--typical-p", type=float, help="Choose among the tokens of most typical surprise. [1]"),
    click.option("--repeat-penalty", type=float, help="Above 1: repeat less. [1]"),
    click.option("--repeat-last-n", type=int, help="Tokens that penalties look back on. -1: all. [64]"),
    click.option("--frequency-penalty", type=float, help="Taken off per earlier use of a token. [0]"),
    click.option("--presence-penalty", type=float, help="Taken off tokens used before. [0]"),
    click.option("-s", "--seed", type=int, help="Same seed, same text. [new each time]"),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated."),
    click.option("--max-time", type=float, metavar="SECONDS", help="Make no further token after this time."),
    click.option(
        "--overflow",
        type=click.Choice(["slide", "stop", "error"]),
        help="When the context is full: see the last tokens only, stop, or refuse. [slide]",
    ),
    click.option("--lookup", metavar="auto|K", help="Tokens drafted from earlier text. 0: none. [auto]"),
)
DEVICE = (
    click.option(
        "-e", "--provider", default="auto", show_default=True, help="auto, cpu, cuda or another's name."
    ),
    click.option("--threads", type=int, help="CPU threads. [what this process may use]"),
    click.option(
        "--decode",
        type=click.Choice(["auto", "recompute", "cached"]),
        default="auto",
        show_default=True,
        help="Compute the whole window at each step, go on from a cache, or what is faster.",
    ),
)
LOADING = (
    *DEVICE,
    click.option("--tokenizer", metavar="PATH|NAME", help="For a plain ONNX model: its tokenizer."),
    click.option("--context-length", type=int, help="For a plain ONNX model: its context, in tokens."),
)


def generation_options(command: Command) -> Command:
    """Add the options of `generation_values`."""
    return _with(command, GENERATION)


def loading_options(command: Command) -> Command:
    """Add the options of `load_model`."""
    return _with(command, LOADING)


def device_options(command: Command) -> Command:
    """Add --provider, --threads and --decode."""
    return _with(command, DEVICE)


def _with(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def generation_values(options: dict[str, Any]) -> dict[str, Any]:
    """What the user gave of the generation options, for `LanguageModel.generate`; takes them out of `options`."""
    from edgelm_runtime.generation.options import LIMIT_OPTIONS, SAMPLING_OPTIONS

    names = {*SAMPLING_OPTIONS, *LIMIT_OPTIONS}
    values = {name: options.pop(name) for name in names & options.keys()}
    values = {name: value for name, value in values.items() if value is not None and value != ()}
    if values.get("lookup", "auto") != "auto":
        try:
            values["lookup"] = int(values["lookup"])
        except ValueError:
            raise click.BadParameter(
                f"{values['lookup']!r} is neither auto nor a number", param_hint="--lookup"
            ) from None
    return values


def load_model(model: str | None, options: dict[str, Any]) -> LanguageModel:
    """Load `model` (None: the bundled one) by the loading options, which it takes out of `options`."""
    from edgelm_runtime import load, load_tokenizer

    tokenizer = options.pop("tokenizer")
    show_warnings_plainly()
    return load(
        model,
        options.pop("provider"),
        options.pop("threads"),
        decode=options.pop("decode"),
        tokenizer=load_tokenizer(tokenizer) if tokenizer else None,
        context_length=options.pop("context_length"),
    )


def show_warnings_plainly() -> None:
    """Warnings become one line on standard error, without the place in the code."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        click.echo(f"edgelm: {message}", err=True)

    warnings.showwarning = show


def parse_ids(text: str) -> list[int]:
    """Token ids separated by spaces or commas, for models without a tokenizer."""
    try:
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        raise click.BadParameter(
            f"this model takes token ids, and {text[:40]!r} is not a list of them", param_hint="PROMPT"
        ) from None


def read_text(source: str | Path) -> str:
    """The text of a file, or of standard input where `source` is -. Raises OptionError where it is not readable."""
    if str(source) == "-":
        return sys.stdin.buffer.read().decode(errors="replace")
    try:
        return Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise OptionError(f"{source} is not UTF-8 text", "convert it first") from error
    except OSError as error:
        raise OptionError(f"cannot read {source}: {error.strerror}", "check the path") from error
