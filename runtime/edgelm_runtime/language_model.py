"""The face of the runtime: load a model file, then generate, stream, chat, score, embed.

What most programs never call is imported where it is called, which keeps their start short.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast, overload
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.errors import OptionError
from edgelm_runtime.generation.constraint import make_constraint
from edgelm_runtime.generation.loop import run
from edgelm_runtime.generation.options import Limits, defaults_from_file, split_options
from edgelm_runtime.generation.results import Generation, Piece, Stats
from edgelm_runtime.generation.sampler import Sampler
from edgelm_runtime.generation.sequence import Row, finished
from edgelm_runtime.prompts import ChatOptions, Prompt, Prompts, TemplateOptions, is_single
from edgelm_runtime.validation import check_prompt, whole

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edgelm_runtime.embedding import Layer, Pooling
    from edgelm_runtime.engine.session import Session
    from edgelm_runtime.generation.decoder import Decoder
    from edgelm_runtime.generation.keywords import Options
    from edgelm_runtime.model_file.metadata import ModelFile
    from edgelm_runtime.scoring import Score
    from edgelm_runtime.serving.engine import Engine
    from edgelm_runtime.text.messages import Message
    from edgelm_runtime.text.tokenizer import Tokenizer


class LanguageModel:
    """A loaded model. One object is safe in many threads at once; `close` it or use it in a `with` block.

    Token ids are whole numbers from 0 to `info.vocab_size - 1`. Methods that take text raise OptionError on
    a model without a tokenizer, and every method raises ClosedError after `close`.
    """

    def __init__(
        self, session: Session, info: ModelFile, decoder: Decoder, load_seconds: float = 0.0
    ) -> None:
        self.info = info
        self.load_seconds = load_seconds
        self._prompts = Prompts(info)
        self._session = session
        self._decoder = decoder
        self._engines: WeakSet[Engine] = WeakSet()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises OptionError for a model that takes and gives ids only."""
        return self._prompts.tokenizer

    @property
    def provider(self) -> str:
        """The execution provider that runs."""
        return self._session.provider

    # A string is also a sequence of strings; the first that fits is meant.
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Prompt, *, n: Literal[1] = 1, **options: Unpack[Options]
    ) -> Generation: ...

    @overload
    def generate(self, prompt: Prompt, *, n: int, **options: Unpack[Options]) -> list[Generation]: ...

    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, n: int = 1, **options: Unpack[Options]
    ) -> list[Generation]: ...

    def generate(self, prompt: Any, *, n: int = 1, **options: Any) -> Generation | list[Generation]:
        """Continue a text, a list of token ids, or a list of such prompts.

        Gives a `Generation`; a list of them for several prompts or n > 1 (prompt by prompt). Options are the
        fields of `Sampling` and `Limits`; what is not given comes from the model file's defaults.
        `choices`, `regex` and `json_schema` constrain the text (extra: constrain). `allowed_special` names
        special tokens whose text in a prompt stands for them ("all": every one).

        Raises OptionError for anything that cannot be used, NumericsError where logits are not finite.
        """
        whole("n", n, 1)
        single = is_single(prompt)
        prompts = [prompt] if single else list(prompt)
        if not prompts:
            raise OptionError("there is no prompt", "give at least one")
        rows, limits = self._rows(prompts, range(n), options)
        stats = Stats()
        pieces: list[list[Piece]] = [[] for _ in rows]
        for piece in run(self._open_decoder(), rows, limits, stats):
            pieces[piece.row].append(piece)
        results = [finished(row, made, stats) for row, made in zip(rows, pieces, strict=True)]
        return results[0] if single and n == 1 else results

    def stream(
        self, prompt: Prompt, *, stats: Stats | None = None, **options: Unpack[Options]
    ) -> Iterator[Piece]:
        """Like `generate` for one prompt, but gives each token's text as it is made.

        The pieces' texts together are the text of `generate`. Options are checked at the call. Pass a
        `Stats` to read counts while it runs.
        """
        rows, limits = self._rows([prompt], [0], dict(options))
        return run(self._open_decoder(), rows, limits, stats)

    def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Generation:
        """The assistant's answer to a conversation: a list of {"role": ..., "content": ...}.

        Takes the options of `generate` and those of `chat_prompt`.
        """
        prompt, rest = self._prompts.split_chat_options(options)
        return self.generate(self.chat_prompt(messages, **prompt), **rest)

    def stream_chat(
        self,
        messages: Sequence[Message],
        *,
        stats: Stats | None = None,
        **options: Unpack[ChatOptions],
    ) -> Iterator[Piece]:
        """Like `chat`, a piece at a time."""
        prompt, rest = self._prompts.split_chat_options(options)
        return self.stream(self.chat_prompt(messages, **prompt), stats=stats, **rest)

    def chat_prompt(self, messages: Sequence[Message], **options: Unpack[TemplateOptions]) -> list[int]:
        """Token ids of the prompt that `chat` makes of `messages`: those of transformers' `apply_chat_template`.

        `tools` are JSON schemas of functions, `template_options` further variables of the model's template
        (`enable_thinking`, `documents`), and `continue_final_message` leaves a last answer open.
        """
        return self._prompts.chat(messages, options)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Next-token logits (T, vocab) at every position of `ids` (T), at most the context length.

        Raises OptionError for more ids than the context holds.
        """
        checked = check_prompt(ids, self.info.vocab_size)
        if len(checked) > self.info.context_length:
            raise OptionError(
                f"{len(checked)} token ids exceed the context of {self.info.context_length}", "give fewer"
            )
        return self._open_decoder()([checked], [len(checked)])[0].astype(np.float32, copy=False)

    def score(
        self,
        text: Prompt,
        *,
        stride: int | None = None,
        progress: Callable[[int], None] | None = None,
        top_logprobs: int | None = None,
    ) -> Score:
        """Log-probabilities, perplexity and bits per byte of a text or of token ids, of any length.

        `stride` is how many tokens one pass scores (default: half the context); `top_logprobs` asks for that many
        likeliest tokens of each place. Models that begin every text with a token of their own score the first
        token of `text` too.
        """
        from edgelm_runtime.scoring import score

        ids = self.encode_prompt(text)
        return score(self._open_decoder(), self.info.tokenizer, ids, stride, progress, top_logprobs)

    @overload
    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        layer: Layer = "hidden",
        pooling: Literal["mean", "last"] = "mean",
        normalize: bool = True,
        batch_size: int = 8,
        prefix: str = "",
    ) -> NDArray[np.float32]: ...

    @overload
    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        layer: Layer = "hidden",
        pooling: Pooling,
        normalize: bool = True,
        batch_size: int = 8,
        prefix: str = "",
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]: ...

    def embed(
        self,
        texts: Any,
        *,
        layer: Layer = "hidden",
        pooling: Pooling = "mean",
        normalize: bool = True,
        batch_size: int = 8,
        prefix: str = "",
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Vectors for texts (or token ids): float32 (len(texts), width), or (width,) for a single text.

        `layer` is the state after the final norm, or the token-plus-position embeddings; the file must
        have been exported with `--outputs`. `pooling` takes the mean over tokens, the last token, or
        `none`, which gives a list of (T, width) arrays. Normalised vectors have length 1. `prefix` is put in front
        of every text, for models that want an instruction there. Texts get the tokens that the model's tokenizer
        puts around a text; longer ones than the context are cut to its first tokens.
        """
        from edgelm_runtime.embedding import embed_rows

        single = is_single(texts)
        every: Any = [texts] if single else texts
        if not len(every):
            raise OptionError("there is no text", "give at least one")
        rows = [self._prompts.encode_whole(text, prefix) for text in every]
        vectors = embed_rows(self._session, rows, layer, pooling, normalize, batch_size)
        if single:
            return vectors[0]
        return vectors if pooling == "none" else np.stack(vectors)

    def encode_prompt(self, prompt: Any, allowed_special: Collection[str] | str = ()) -> NDArray[np.int64]:
        """Token ids (T,) of a prompt as the model wants to see it, T at least 1.

        Text gets the model's begin token where it has one; an empty text becomes that token, or end-of-text.
        Raises OptionError for an empty prompt where the model has neither.
        """
        return self._prompts.encode(prompt, allowed_special)

    def engine(self, parallel: int = 4, queue: int = 64) -> Engine:
        """Serve many callers at once: up to `parallel` requests advance together, up to `queue` more wait.

        Use it in a `with` block; its thread owns a cache of `parallel` slots of the model's context each. Requests
        join and leave between steps, and each gets the text that `generate` would give it alone.
        """
        from edgelm_runtime.serving.engine import Engine

        def chat_row(messages: Sequence[Message], sample: int, **options: Any) -> Row:
            prompt, rest = self._prompts.split_chat_options(cast(ChatOptions, options))
            return self._row(self.chat_prompt(messages, **prompt), sample, **rest)

        engine = Engine(self._open_decoder(), self._row, chat_row, parallel, queue)
        self._engines.add(engine)
        return engine

    def _row(self, prompt: Prompt, sample: int, **options: Any) -> Row:
        whole("sample", sample, 0)
        return self._rows([prompt], [sample], options)[0][0]

    def _rows(
        self, prompts: Sequence[Any], samples: Sequence[int], options: dict[str, Any]
    ) -> tuple[list[Row], Limits]:
        """A row for each sample of each prompt."""
        if isinstance(options.get("reference"), str):
            options = {**options, "reference": self.tokenizer.encode(options["reference"], continues=True)}
        sampling, limits, text = split_options({**defaults_from_file(self.info.generation), **options})
        sampling.check_ids(self.info.vocab_size)
        if self.info.tokenizer is not None and (holes := self.info.tokenizer.holes(self.info.vocab_size)):
            sampling = replace(sampling, banned_tokens=(*sampling.banned_tokens, *holes))
        constraint = make_constraint(self.info, text)
        encoded = [self.encode_prompt(prompt, text.allowed_special) for prompt in prompts]
        if len(limits.reference):
            check_prompt(limits.reference, self.info.vocab_size)
        return [
            Row(
                ids,
                Sampler(sampling, sample, constraint.start(len(ids)) if constraint else None),
                limits,
                self.info.end_ids,
                self.info.tokenizer,
                index=index * len(samples) + place,
            )
            for index, ids in enumerate(encoded)
            for place, sample in enumerate(samples)
        ], limits

    def _open_decoder(self) -> Decoder:
        self._session.raw  # noqa: B018
        return self._decoder

    def close(self) -> None:
        """Close the engines, and free the model. Later calls raise ClosedError."""
        for engine in list(self._engines):
            engine.close()
        self._session.close()
        self._decoder.clear()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
