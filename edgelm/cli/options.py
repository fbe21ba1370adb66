"""Options that several commands share: how text is generated, and how a model is loaded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from edgelm.cli.arguments import expanded, model_path
from edgelm_runtime.generation.declaration import AutoOr, Choice, Flag, Maybe, Option, StopStrings, Whole
from edgelm_runtime.generation.options import OPTIONS

if TYPE_CHECKING:
    from edgelm_runtime import LanguageModel

Command = TypeVar("Command", bound=Callable[..., Any])


class AutoOrWhole(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on only
    """The word auto, or a whole number."""

    name = "auto|N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | Literal["auto"]:
        if value == "auto":
            return "auto"
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither auto nor a number", param, ctx)


def _click_option(about: Option) -> Callable[[Command], Command]:
    """The click option for a declared option of generation.

    A value that the user does not give is None and leaves the model file's own default in force.
    """
    kind = about.kind.kind if isinstance(about.kind, Maybe) else about.kind
    settings: dict[str, Any]
    if isinstance(kind, StopStrings):
        settings = {"multiple": True, "metavar": "TEXT"}
    elif isinstance(kind, Choice):
        settings = {"type": click.Choice(kind.names)}
    elif isinstance(kind, Flag):
        settings = {"is_flag": True, "default": None}
    elif isinstance(kind, AutoOr):
        settings = {"type": AutoOrWhole()}
    else:
        settings = {"type": int if isinstance(kind, Whole) else float}
    repeat = " Repeat the option for several." if settings.get("multiple") else ""
    text = f"{about.help.replace('`', '')}{repeat}  [default: {about.default_text}]"
    names = (f"--{about.name.replace('_', '-')}", *(about.flags or ()))
    return click.option(*names, help=text, **settings)


GENERATION = tuple(_click_option(about) for about in OPTIONS.values() if about.flags is not None)
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
    values = {name: options.pop(name) for name, about in OPTIONS.items() if about.flags is not None}
    return {name: value for name, value in values.items() if value is not None and value != ()}


def load_model(model: str | None, options: dict[str, Any]) -> LanguageModel:
    """Load `model` (None: the bundled one) by the loading options, which it takes out of `options`."""
    from edgelm_runtime import load, load_tokenizer

    tokenizer = options.pop("tokenizer")
    show_warnings_plainly()
    return load(
        None if model is None else model_path(model),
        options.pop("provider"),
        options.pop("threads"),
        decode=options.pop("decode"),
        tokenizer=None if tokenizer is None else load_tokenizer(expanded(tokenizer)),
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
