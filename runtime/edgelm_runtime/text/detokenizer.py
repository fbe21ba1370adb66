"""Token ids to text as they come, in whole characters only."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgelm_runtime.text.tokenizer import Tokenizer


class Detokenizer:
    """Turns one token at a time into the text that is complete so far.

    A token may end inside a character; its bytes wait for the rest. All pieces and the final `flush`
    together are exactly `tokenizer.decode` of all ids, special tokens left out unless `keep_special`; only a
    space that begins the text stays, since generated text continues a prompt.
    """

    def __init__(self, tokenizer: Tokenizer, keep_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = not keep_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is unfinished."""
        return self._decoder.decode(
            self._tokenizer.decode_bytes((token_id,), skip_special=self._skip_special)
        )

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)
