"""A conversation that remembers: the messages so far, cut to what the model can see."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from edgelm_runtime.errors import OptionError
from edgelm_runtime.generation.options import Limits
from edgelm_runtime.prompts import TEMPLATE_OPTIONS, ChatOptions
from edgelm_runtime.validation import shown, whole

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgelm_runtime.generation.results import Piece
    from edgelm_runtime.language_model import LanguageModel


class Conversation:
    """A talk with `lm`, from an optional `system` message on. Not for several threads at once.

    `messages` is the list that `LanguageModel.chat` takes, and may be read, saved and changed between
    questions. When prompt and answer would not fit into the context, the oldest exchange is forgotten, and not
    the system message; `forgotten` counts them.

    Raises OptionError where the model's chat template takes no conversation, or no system message.
    """

    def __init__(self, lm: LanguageModel, system: str | None = None) -> None:
        if system is not None and not isinstance(system, str):
            raise OptionError(f"system is {shown(system)}", "give text")
        self.lm = lm
        self.system = system
        self.messages: list[dict[str, Any]] = []
        self.forgotten = 0
        self.reset()
        self._check()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []
        self.forgotten = 0

    def ask(self, text: str, **options: Unpack[ChatOptions]) -> Generator[Piece, None, None]:
        """Stream the answer to `text`; options are those of `LanguageModel.stream_chat`.

        Question and answer are remembered when the stream ends. An answer that is broken off, by closing the
        iterator, is kept as far as it came. Raises what `stream_chat` raises.
        """
        limit = options.get("max_new_tokens", self.lm.info.generation.get("max_new_tokens"))
        messages = self._fitting(
            [*self.messages, {"role": "user", "content": text}],
            Limits.max_new_tokens if limit is None else limit,
            options,
        )
        keeps = bool(options.get("keep_special"))
        return self._answer(messages, self.lm.stream_chat(messages, **options), keeps)

    def _check(self) -> None:
        """Find out now what the first question would find out."""
        question = {"role": "user", "content": "?"}
        try:
            self.lm.chat_prompt([*self.messages, question])
        except OptionError as error:
            if not self.system:
                raise
            self.lm.chat_prompt([question])  # raises where it is not for the system message
            raise OptionError(
                f"this model's chat template takes no system message: {error.problem}",
                "put it into the first question",
            ) from error

    def _answer(
        self, messages: list[dict[str, Any]], stream: Iterator[Piece], keeps_special: bool
    ) -> Generator[Piece, None, None]:
        said = []
        try:
            for piece in stream:
                said += [piece.text] if keeps_special else [self._hidden(piece), piece.text]
                yield piece
        finally:
            self.forgotten += (len(self.messages) + 1 - len(messages)) // 2
            self.messages = [*messages, {"role": "assistant", "content": "".join(said).strip()}]

    def _hidden(self, piece: Piece) -> str:
        """The special token that a piece does not show: a template cuts answers at such (`[/THINK]`)."""
        special = self.lm.tokenizer.special_ids
        if piece.token_id not in special or self.lm.info.chat_template is None:
            return ""
        return self.lm.tokenizer.decode((piece.token_id,))

    def _fitting(
        self, messages: list[dict[str, Any]], max_new_tokens: int, options: ChatOptions
    ) -> list[dict[str, Any]]:
        """`messages` without the oldest exchanges, so that an answer, of half the context at most, has room."""
        whole("max_new_tokens", max_new_tokens, 0)
        context = self.lm.info.context_length
        room = context - min(max_new_tokens, context // 2)
        first = 1 if messages[0]["role"] == "system" else 0
        template: Any = {name: options[name] for name in TEMPLATE_OPTIONS if name in options}  # type: ignore[literal-required]
        while len(messages) - first > 2 and len(self.lm.chat_prompt(messages, **template)) > room:
            messages = messages[:first] + messages[first + 2 :]
        return messages
