"""Output held to choices, a regular expression or a JSON schema.

llguidance (MIT, maintained by its authors at Microsoft, used by llama.cpp and vLLM) decides which tokens keep
the text valid; here its masks meet the sampler. It is an extra, imported only when asked for.

The whole text matches: a text ends by itself where nothing may follow, or by an end token where it may end. One
that `max_new_tokens` cuts short (finish_reason "length") is the beginning of a valid text. Regular expressions
are those of Rust's regex crate: no look-around, no back-references, and `\\d` is a digit of any script. JSON has
the white space that Python's `json.dumps` gives it and no other, since a small model otherwise may go on with
blanks for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.errors import MissingExtraError, OptionError

if TYPE_CHECKING:
    from edgelm_runtime.arrays import Ids
    from edgelm_runtime.generation.options import TextOptions
    from edgelm_runtime.model_file.metadata import ModelFile
    from edgelm_runtime.text.tokenizer import Tokenizer

JSON_FORM: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Constraint:
    """A compiled grammar for one model. Raises OptionError where the grammar is not valid."""

    def __init__(self, grammar: str, tokenizer: Tokenizer, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        self._grammar = grammar
        self._tokenizer = _guidance_tokenizer(tokenizer, end_ids)
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self.start(0)

    def start(self, prompt_length: int) -> ConstraintState:
        """The state of one text, which begins after `prompt_length` tokens."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, self._grammar, log_level=0)
        if matcher.is_error():
            raise OptionError(f"the constraint is not usable: {_one_line(matcher.get_error())}")
        return ConstraintState(matcher, prompt_length, self._vocab_size, self._end_ids)


class ConstraintState:
    """Which tokens may follow one text so far. Texts only grow, so it goes forward and never back."""

    def __init__(self, matcher: Any, length: int, vocab_size: int, end_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._length = length
        self._vocab_size = vocab_size
        self._end_ids = list(end_ids)

    def allowed(self, ids: Ids) -> NDArray[np.bool_]:
        """Tokens (vocab,) that keep the text valid after `ids`; end tokens where the text may end."""
        self._advance(ids)
        mask = np.zeros(self._vocab_size, bool)
        known = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8)[: self._vocab_size]
        self._check()
        mask[: len(known)] = known
        mask[self._end_ids] = self._matcher.is_accepting()
        return mask

    def complete(self, ids: Ids) -> bool:
        """Whether the text is whole and nothing can follow it."""
        self._advance(ids)
        return bool(self._matcher.is_stopped() and self._matcher.is_accepting())

    def _advance(self, ids: Ids) -> None:
        """Tell the matcher what was added since the last call."""
        added = ids[self._length :].tolist()
        if added and self._matcher.try_consume_tokens(added) < len(added):
            self._check()
            raise OptionError("forced_tokens contradict the constraint", "leave one of them out")
        self._length = len(ids)

    def _check(self) -> None:
        """Raise OptionError where the grammar grew beyond what llguidance computes."""
        if self._matcher.is_error():
            raise OptionError(f"the constraint is not usable: {_one_line(self._matcher.get_error())}")


def make_constraint(model: ModelFile, options: TextOptions) -> Constraint | None:
    """The constraint that the options ask for; None where they ask for none.

    Raises OptionError for several at once, a model without tokenizer, or an unusable grammar, and
    MissingExtraError without llguidance.
    """
    given = [o for o in (options.choices, options.regex, options.json_schema) if o is not None]
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
    if options.json_schema is not None:
        schema = _schema_text(options.json_schema)
        grammar = _grammar(LLMatcher.grammar_from_json_schema, schema, defaults=JSON_FORM)
    elif options.regex is not None:
        grammar = _grammar(LLMatcher.grammar_from_regex, options.regex)
    else:
        grammar = _grammar(LLMatcher.grammar_from_regex, "|".join(map(re.escape, options.choices or ())))
    return Constraint(grammar, model.tokenizer, model.vocab_size, model.end_ids)


def _grammar(make: Callable[..., str], source: str, **settings: Any) -> str:
    try:
        return make(source, **settings)
    except Exception as error:  # llguidance has no class of its own for what it cannot read
        raise OptionError(f"the constraint is not usable: {_one_line(error)}") from error


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]


def _schema_text(schema: Mapping[str, Any] | str | bool) -> str:
    """The schema as JSON. Raises OptionError where it is none."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"json_schema is not JSON: {error}", "give a JSON schema") from error
    if not isinstance(value, (dict, bool)):
        raise OptionError(f"json_schema is {text}"[:200], "give an object, as JSON Schema describes it")
    if value is False:
        raise OptionError("json_schema is false, under which nothing is valid", "give another schema")
    return "{}" if value is True else text


@lru_cache(maxsize=4)
def _guidance_tokenizer(tokenizer: Tokenizer, end_ids: tuple[int, ...]) -> Any:
    """The vocabulary as llguidance wants it; one per model, since it builds a trie of all tokens."""
    from llguidance import LLTokenizer, TokenizerWrapper

    tokens = [tokenizer.decode_bytes((token_id,)) for token_id in range(tokenizer.vocab_size)]
    # Models without an end token get one after the vocabulary, which the mask then leaves out.
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
            # What a grammar says next never begins a text.
            plain = text if isinstance(text, str) else text.decode(errors="replace")
            return tokenizer.encode(plain, continues=True)

    return LLTokenizer(TokenizerWrapper(Vocabulary()))
