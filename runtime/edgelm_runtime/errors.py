"""Every error that edgelm raises on purpose.

One hierarchy, so that a program that embeds edgelm can catch `EdgelmError` alone and the command line
can turn errors into one-line messages in one place. A message says what is wrong, with the value, and
what to do about it.
"""

from __future__ import annotations

SHOWN = 100
"""Characters of a value that a message shows."""


def shown(value: object) -> str:
    """A value as a message shows it: on one line, short, whatever the value is."""
    try:
        text = repr(value)
    except Exception:  # numbers of thousands of digits, and whatever a class of the caller's does
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


class EdgelmError(Exception):
    """Base of all errors that edgelm raises on purpose.

    `problem` says what is wrong and names the value; `remedy` says what to do. `str()` joins them.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}; {remedy}" if remedy else problem)


class OptionError(EdgelmError, ValueError):
    """A value that a caller passed cannot be used: a sampling option, a token id, a prompt."""


class ModelFileError(EdgelmError):
    """A model file is missing, damaged, too new, or says something that its graph contradicts."""


class VerificationError(EdgelmError):
    """A model file does not reproduce the results that it was exported with."""


class TokenizerError(EdgelmError):
    """A tokenizer cannot be built, found or read."""


class ProviderError(EdgelmError):
    """The execution provider asked for is not the one that runs."""


class NumericsError(EdgelmError):
    """The model gave NaN or infinite logits, so there is nothing to sample from."""


class ClosedError(EdgelmError):
    """The model, or the engine, was closed before this call."""


class QueueFullError(EdgelmError):
    """An engine has as many waiting requests as it may have; a later try can succeed."""


class ConfigError(EdgelmError, ValueError):
    """A model or training configuration contradicts itself."""


class DataError(EdgelmError):
    """Training data is missing, unreadable or too short."""


class CheckpointError(EdgelmError):
    """A checkpoint or another source of weights is missing, damaged or of an unknown kind."""


class PointerError(ModelFileError, TokenizerError, CheckpointError):
    """A Git LFS pointer stands in the place of a model, weights or tokenizer file."""


class OutputError(EdgelmError):
    """A result cannot be written where it was asked for."""


class TrainingError(EdgelmError):
    """Training cannot go on, for instance because the loss is not finite."""


class ExportError(EdgelmError):
    """A model cannot be exported, or the exported graph does not agree with PyTorch."""


class MissingExtraError(EdgelmError, ImportError):
    """A part of edgelm was called whose optional packages are not installed."""

    def __init__(self, package: str, extra: str) -> None:
        EdgelmError.__init__(
            self, f"this needs the package {package!r}", f"install it with: pip install 'edgelm[{extra}]'"
        )
