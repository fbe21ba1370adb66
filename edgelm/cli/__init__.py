"""The command line. Each command is a module of this package, imported only when it is called.

A command parses, calls one library function and prints. Errors become messages here and nowhere else:
one line on standard error and exit status 1; `--debug` shows the traceback instead.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
from pathlib import Path
from types import FrameType

import click

from edgelm import __version__
from edgelm.cli.arguments import UserPath
from edgelm.cli.streams import open_streams, silence
from edgelm_runtime.errors import EdgelmError, MissingExtraError

# Name, and the line that `edgelm --help` shows without importing the command.
COMMANDS = {
    "demo": "Train, export, verify and run a small model of Python code, start to finish.",
    "train": "Train a tokenizer and a model on your text.",
    "import": "Turn a model from elsewhere into an edgelm checkpoint.",
    "convert": "Write a model for transformers or llama.cpp.",
    "export": "Write a checkpoint, or a model from elsewhere, as one .onnx file.",
    "quantize": "Make a finished model file smaller and faster.",
    "verify": "Check that a model file still gives the results that it was exported with.",
    "info": "Describe a model file.",
    "run": "Continue a prompt.",
    "chat": "Talk with a model.",
    "serve": "Answer programs and web pages over HTTP, as OpenAI's interface does.",
    "score": "Measure how well a model predicts texts.",
    "embed": "Turn texts into vectors.",
    "web": "Write a web page that runs a model, complete and offline.",
    "batch": "Answer a file of requests.",
    "bench": "Measure speed and memory of a model file.",
}

# Packages that come with an extra, by what an ImportError names.
EXTRAS = {
    "torch": "train", "onnx": "train", "onnxscript": "train", "onnx_ir": "train", "safetensors": "train",
    "filelock": "train",
    "tokenizers": "train", "gguf": "train", "matplotlib": "train", "jinja2": "chat",
    "llguidance": "constrain", "starlette": "serve", "uvicorn": "serve",
}  # fmt: skip


def _note_debug(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and isinstance(ctx.find_root().obj, dict):
        ctx.find_root().obj["debug"] = True


# Understood before and after the command's name, since it is wanted after a command has failed.
DEBUG = click.Option(
    ["--debug"], is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=_note_debug,
    help="Show the traceback of an error.",
)  # fmt: skip


class LazyGroup(click.Group):
    """Lists commands from a table and imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"edgelm.cli.{name}_command").command
        if DEBUG not in command.params:
            command.params.append(DEBUG)
        for parameter in command.params:
            if type(parameter.type) is click.Path:
                parameter.type = UserPath(path_type=Path)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _dashed(name: str) -> str:
    """`--max_new_tokens` is understood as `--max-new-tokens`."""
    return name.replace("_", "-")


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": _dashed},
)
@click.version_option(__version__, prog_name="edgelm")
@click.option(
    "--debug", is_flag=True, is_eager=True, expose_value=False, callback=_note_debug,
    help="Show the traceback of an error.",
)  # fmt: skip
def group() -> None:
    """Small language models from text to one .onnx file that any program can run."""


def main() -> None:
    """Run the command line and exit."""
    signal.signal(signal.SIGTERM, _terminated)
    open_streams()
    state = {"debug": False}
    try:
        group.main(sys.argv[1:], prog_name="edgelm", standalone_mode=False, obj=state)
        sys.stdout.flush()
    except click.exceptions.Abort:
        fail("interrupted", 130)
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        silence()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        silence()  # the reader has gone (`edgelm run ... | head`): nobody is left to tell
        sys.exit(141)
    except Exception as error:
        if state["debug"]:
            raise
        fail(_explained(error))


def _terminated(number: int, frame: FrameType | None) -> None:
    """End as an error does: what is half written is taken away again."""
    sys.exit(128 + number)


def _explained(error: Exception) -> str:
    """An error in one line: a missing optional package with the command that installs it."""
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package in EXTRAS:
        return str(MissingExtraError(package, EXTRAS[package]))
    if isinstance(error, EdgelmError):
        return str(error)
    if isinstance(error, OSError) and error.filename is None:
        return f"cannot write the output: {error.strerror or error}"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return f"internal error, please report it: {type(error).__name__}: {error} (--debug shows where)"


def fail(message: str, status: int = 1) -> None:
    """Print one line on standard error and exit."""
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"edgelm: {' '.join(message.split())}", err=True)
    silence()
    sys.exit(status)
