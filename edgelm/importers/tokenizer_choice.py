"""Which tokenizer an imported model gets: the one asked for, or the one that its source brings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgelm_runtime.errors import EdgelmError, TokenizerError
from edgelm_runtime.text.huggingface.convert import ImportedTokenizer
from edgelm_runtime.text.tokenizer_loading import load_tokenizer

WAYS_ON = "give one with --tokenizer PATH|NAME, or --tokenizer none for a model that takes and gives ids only"


@dataclass(frozen=True)
class TokenizerChoice:
    """The caller's choice, made once and handed down to whatever reads the source.

    `requested` reads the tokenizer asked for, given the number of the model's embedding rows; None takes the
    source's own. With `ids_only` the model gets no tokenizer.
    """

    requested: Callable[[int], ImportedTokenizer] | None = None
    ids_only: bool = False

    def tokenizer(
        self, own: Callable[[], ImportedTokenizer | None], rows: int, source: str
    ) -> ImportedTokenizer | None:
        """The tokenizer for a model with `rows` embedding rows; `own` reads the one that `source` brings.

        Raises TokenizerError where it cannot be read or has more ids than the model has rows.
        """
        if self.ids_only:
            return None
        found = own() if self.requested is None else self.requested(rows)
        if found is not None and found.tokenizer.vocab_size > rows:
            raise TokenizerError(
                f"the tokenizer has {found.tokenizer.vocab_size} ids, the model of {source} only {rows} rows",
                WAYS_ON,
            )
        return found


def named(name: str, source: str) -> ImportedTokenizer:
    """The public encoding that a source's text was written in. Raises TokenizerError with the ways on."""
    try:
        return ImportedTokenizer(load_tokenizer(name))
    except EdgelmError as error:
        raise TokenizerError(
            f"{source} was trained with the tokenizer {name}: {error.problem}", WAYS_ON
        ) from error


def missing(source: str, why: str) -> TokenizerError:
    """The error for a source without a usable tokenizer."""
    return TokenizerError(f"no tokenizer for {source}: {why}", WAYS_ON)
