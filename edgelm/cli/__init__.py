"""The command line. Each command is a module of this package, imported only when it is called.

A command parses, calls one library function and prints. Errors become messages here and nowhere else:
one line on standard error and exit status 1; `--debug` shows the traceback instead.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType

import click

from edgelm import __version__
from edgelm_runtime.errors import EdgelmError, MissingExtraError

# Name, and the line that `edgelm --help` shows without importing the command.
COMMANDS = {
    "demo": "Train, export, verify and run a small model of Python code, start to finish.",
    "train": "Train a tokenizer and a model on your text.",
    "import": "Turn a model from elsewhere into an edgelm checkpoint.",
    "export": "Write a checkpoint, or a model from elsewhere, as one .onnx file.",
    "quantize": "Make a finished model file smaller and faster.",
    "verify": "Check that a model file still gives the results that it was exported with.",
    "info": "Say what a model file is.",
    "run": "Continue a prompt.",
    "chat": "Talk with a model.",
    "score": "Measure how well a model predicts texts.",
    "embed": "Turn texts into vectors.",
    "web": "Write a web page that runs a model, complete and offline.",
    "bench": "Measure speed and memory of a model file.",
}

# Packages that come with an extra, by what an ImportError names.
EXTRAS = {
    "torch": "train", "onnx": "train", "onnxscript": "train", "onnx_ir": "train", "safetensors": "train",
    "tokenizers": "train", "gguf": "train", "matplotlib": "train", "jinja2": "chat",
    "llguidance": "constrain",
}  # fmt: skip


class LazyGroup(click.Group):
    """Lists commands from a table and imports only the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"edgelm.cli.{name}_command").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edgelm")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def group(debug: bool) -> None:
    """Small language models from text to one .onnx file that any program can run."""


def main() -> None:
    """Run the command line and exit."""
    signal.signal(signal.SIGTERM, _terminated)
    # The flag is understood anywhere on the line, since it is wanted after a command has failed.
    debug = "--debug" in sys.argv[1:]
    arguments = [_dashed(argument) for argument in sys.argv[1:] if argument != "--debug"]
    try:
        group.main(arguments, prog_name="edgelm", standalone_mode=False)
    except click.exceptions.Abort:
        fail("interrupted", 130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader has gone (`edgelm run ... | head`): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (EdgelmError, ImportError) as error:
        if debug:
            raise
        fail(str(_explained(error)))


def _terminated(number: int, frame: FrameType | None) -> None:
    """End as an error does: what is half written is taken away again."""
    sys.exit(128 + number)


def _dashed(argument: str) -> str:
    """Underscores in an option's name as dashes: `--max_new_tokens=5` is understood too."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _explained(error: EdgelmError | ImportError) -> Exception:
    """A missing optional package, said with the command that mends it; any other error as it is."""
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package in EXTRAS:
        return MissingExtraError(package, EXTRAS[package])
    if isinstance(error, EdgelmError):
        return error
    raise error


def fail(message: str, status: int = 1) -> None:
    """Print one line on standard error and exit."""
    click.echo(f"edgelm: {' '.join(message.split())}", err=True)
    sys.exit(status)
