"""Output held to choices, a regular expression or a JSON schema.

llguidance (MIT, maintained by its authors at Microsoft, used by llama.cpp and vLLM) decides which tokens keep
the text valid; here its masks meet the sampler. It is an extra, imported only when asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.errors import MissingExtraError, OptionError
from edgelm_runtime.model_file import ModelFile
from edgelm_runtime.tokenizer import Tokenizer

Ids = NDArray[np.int64]


class Constraint:
    """A compiled grammar for one model. Raises OptionError where the grammar is not valid."""

    def __init__(self, grammar: str, tokenizer: Tokenizer, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        self._grammar = grammar
        self._tokenizer = _guidance_tokenizer(tokenizer, end_ids)
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self.start(0)

    def start(self, prompt_length: int) -> ConstraintState:
        """The state of one text, which begins behind `prompt_length` tokens."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, self._grammar)
        if matcher.is_error():
            raise OptionError(f"the constraint is not usable: {matcher.get_error()}")
        return ConstraintState(matcher, prompt_length, self._vocab_size, self._end_ids)


class ConstraintState:
    """Which tokens may follow one text so far."""

    def __init__(self, matcher: Any, length: int, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._length = length
        self._vocab_size = vocab_size
        self._end_ids = end_ids

    def allowed(self, ids: Ids) -> NDArray[np.bool_]:
        """Tokens (vocab,) that keep the text valid after `ids`; end tokens where the text may end."""
        self._advance(ids)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        mask = np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool)
        if len(mask) < self._vocab_size:
            mask = np.concatenate((mask, np.zeros(self._vocab_size - len(mask), bool)))
        mask[list(self._end_ids)] = self._matcher.is_accepting()
        return mask

    def complete(self, ids: Ids) -> bool:
        """Whether the text is whole and nothing can follow it."""
        self._advance(ids)
        if not self._matcher.is_accepting():
            return False
        if self._matcher.is_stopped():
            return True
        following = self.allowed(ids)
        following[list(self._end_ids)] = False
        return not following.any()

    def _advance(self, ids: Ids) -> None:
        """Tell the matcher what was added since the last call."""
        if len(ids) > self._length:
            self._matcher.consume_tokens(ids[self._length :].tolist())
            self._length = len(ids)


def make_constraint(
    model: ModelFile,
    choices: Sequence[str] | None,
    regex: str | None,
    json_schema: Mapping[str, Any] | str | None,
) -> Constraint | None:
    """The constraint that the options ask for; None where they ask for none.

    Raises OptionError for several at once, a model without tokenizer, or an unusable grammar, and
    MissingExtraError without llguidance.
    """
    given = [option for option in (choices, regex, json_schema) if option is not None]
    if not given:
        return None
    if len(given) > 1:
        raise OptionError("choices, regex and json_schema exclude each other", "give one of them")
    if model.tokenizer is None:
        raise OptionError("constrained output needs a tokenizer", "this model has none")
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise MissingExtraError("llguidance", "constrain") from error
    if json_schema is not None:
        schema = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
        grammar = LLMatcher.grammar_from_json_schema(schema)
    elif regex is not None:
        grammar = LLMatcher.grammar_from_regex(regex)
    else:
        if isinstance(choices, str) or not choices or not all(choices):
            raise OptionError(f"choices is {choices!r}", "give a list of texts that are not empty")
        grammar = LLMatcher.grammar_from_regex("|".join(map(re.escape, choices)))
    return Constraint(grammar, model.tokenizer, model.vocab_size, model.end_ids)


@lru_cache(maxsize=4)
def _guidance_tokenizer(tokenizer: Tokenizer, end_ids: tuple[int, ...]) -> Any:
    """The vocabulary as llguidance wants it; one per model, since it builds a trie of all tokens."""
    from llguidance import LLTokenizer, TokenizerWrapper

    tokens = [tokenizer.decode_bytes((token_id,)) for token_id in range(tokenizer.vocab_size)]
    # Models without an end token get one behind the vocabulary, which the mask then leaves out.
    end = end_ids[0] if end_ids else len(tokens)
    if not end_ids:
        tokens.append(b"")

    class Vocabulary:
        eos_token_id = end
        bos_token_id = None
        special_token_ids = sorted({*tokenizer.special_ids, end})

        def __init__(self) -> None:
            self.tokens = tokens

        def __call__(self, text: bytes | str) -> list[int]:
            return tokenizer.encode(text if isinstance(text, str) else text.decode(errors="replace"))

    return LLTokenizer(TokenizerWrapper(Vocabulary()))
