"""Proof on import that a converted tokenizer gives the ids of the original, and their text.

The texts are made here: code, prose in several scripts, emoji, white space of every kind and length,
every character of the common blocks, and pieces of the vocabulary itself in random company. The
original is run by the `tokenizers` library.
"""

from __future__ import annotations

import inspect
import json
import random
import textwrap
import time
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import tokenizers

from edgelm_runtime.errors import OptionError, TokenizerError

if TYPE_CHECKING:
    from edgelm_runtime.text.tokenizer import Tokenizer

_PROSE = (
    "The quick brown fox doesn't jump; it's WE'LL, I'M, they've and YOU'D who do, 1234567 times (3.14%)!",
    "Große Straße, naïve café, Ångström, œuvre, ¿qué tal? – «oui», “yes” … it’s",
    "Cafe\u0301 and A\u030angstro\u0308m in pieces, \u1100\u1161\u11a8 too, q\u0307\u0323 as well",
    "Съешь ещё этих мягких французских булок, да выпей чаю. 2024 год",
    "Η γρήγορη αλεπού πηδά. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "שלום עולם, מה שלומך? בְּרֵאשִׁית",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣٤",
    "नमस्ते दुनिया, आप कैसे हैं? १२३",
    "สวัสดีชาวโลก วันนี้อากาศดี ๑๒๓",
    "你好，世界！今天天气很好。一二三ＡＢＣ１２３",
    "こんにちは世界。カタカナとひらがな、ｶﾅ",
    "안녕하세요 세계, 오늘은 날씨가 좋네요",
    "Xin chào thế giới, hôm nay trời đẹp quá",
    "👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇩🇪 ❤️‍🔥 #️⃣ ☃ ✔ ∑∫√ ℵ₀ ½ ⅷ x² H₂O ①",
    "user@example.com https://example.com/a_b-c?d=e%20f&g#h C:\\dir\\file.txt --flag=\"x y\" $HOME ~/.rc",
    "<|endoftext|> </s> <unk> [INST] <0x0A> <pad> @@ ## \u2581 \u2581\u2581x ĠĊ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa--------========________!!!!!!!!",
    "\x00\x01\x07\x1b[0m\x7f\x80\x9f\xad\ufeff\u200b\u200d\u2028\u2029\ufffd\U0001f9ff\U00020000",
)  # fmt: skip
_SPACES = (" ", "\t", "\n", "\r", "\r\n", "\x0b", "\x0c", "\xa0", "\u2003", "\u3000")
_BLOCKS = ((0x20, 0x250), (0x250, 0x600), (0x600, 0xE00), (0xE00, 0x1200), (0x1E00, 0x2C00), (0x3000, 0x3400),
           (0x4E00, 0x5000), (0xAC00, 0xAD00), (0xF900, 0xFFF0), (0x1F300, 0x1F650))  # fmt: skip


def check_tokenizer(reference: tokenizers.Tokenizer, tokenizer: Tokenizer, source: str) -> None:
    """Raise TokenizerError that shows the first text whose ids or decoded text differ."""
    reference.encode_special_tokens = True  # text is text: special tokens come from the program alone
    texts = _expressible(probe_texts(tokenizer), tokenizer)
    for _text, ids in zip(texts, _compared(texts, reference, tokenizer, (), source), strict=True):
        back, original = tokenizer.decode(ids), reference.decode(ids, skip_special_tokens=False)
        if back != original:
            raise TokenizerError(
                f"{source}: ids {ids[:20]} are {back[:60]!r} instead of {original[:60]!r}",
                "this tokenizer cannot be imported exactly",
            )

    # Special tokens that the original looks for in normalised text stand where a text spells them here.
    added = reference.get_added_tokens_decoder().values()
    special = sorted({*tokenizer.special} - {token.content for token in added if token.normalized})
    named = _expressible(named_texts([*sorted(tokenizer.added), *special]), tokenizer)
    _compared(named, reference, tokenizer, (), source)
    reference.encode_special_tokens = False
    _compared(named, reference, tokenizer, special, source)


def _compared(
    texts: list[str],
    reference: tokenizers.Tokenizer,
    tokenizer: Tokenizer,
    special: Sequence[str] | str,
    source: str,
) -> list[list[int]]:
    """The ids of `texts`. Raises TokenizerError where the original gives others."""
    found = []
    for text, encoded in zip(texts, reference.encode_batch(texts, add_special_tokens=False), strict=True):
        found.append(ids := tokenizer.encode(text, special))
        if ids != encoded.ids:
            raise TokenizerError(
                f"{source}: {_shown(text, ids, encoded.ids, tokenizer)}",
                "this tokenizer cannot be imported exactly",
            )
    return found


def check_speed(tokenizer: Tokenizer, source: str) -> None:
    """Raise TokenizerError for a pattern that needs more than linear time, or gives up, on long runs.

    Texts grow by steps of four, so that what grows faster than they do is found while it is still quick.
    """
    literal = {character for character in tokenizer.pattern if character.isascii()}
    for character in sorted({*" \n\ta1!é你", *literal}):
        for length in (256, 1024, 4096, 16384, 65536):
            limit = 0.1 + length * 5e-6
            try:
                fast = any(_seconds(tokenizer, character * length) < limit for _ in range(3))
            except OptionError:
                fast = False
            if not fast:
                raise TokenizerError(
                    f"{source}: the pattern {tokenizer.pattern[:80]!r} is too slow on {length} times {character!r}",
                    "give another tokenizer with --tokenizer PATH|NAME, or --tokenizer none",
                )


def _seconds(tokenizer: Tokenizer, text: str) -> float:
    start = time.perf_counter()
    tokenizer.encode(text)
    return time.perf_counter() - start


def named_texts(names: list[str], seed: int = 0) -> Iterator[str]:
    """Every added and special token next to every kind of neighbour: others, spaces, letters, both ends."""
    draw = random.Random(seed)
    names = list(names)
    for _ in range(3):
        draw.shuffle(names)
        for begin in range(0, len(names), 50):
            part = names[begin : begin + 50]
            yield "".join(part)
            yield "a".join(part)
            yield " ".join(part)
            yield "".join(
                draw.choice(("", " ", "  ", "\n", "a", " a", "a ", "\u0301", "é")) + name for name in part
            )
    for name, other in zip(names[:1000], names[1:1001] + names[:1], strict=False):
        yield from (name, f" {name} ", f"a{name}b", f"a {name} b", f"{name}{other}", f"{name}\n\n{other} ")


def _expressible(texts: Iterator[str], tokenizer: Tokenizer) -> list[str]:
    """The texts less the characters that need a byte which the vocabulary lacks (a few control characters
    in SmolLM's). The original drops such bytes between cutting and merging, the runtime beforehand."""
    lacking = {byte for byte in range(256) if tokenizer.ids is not None and tokenizer.ids[byte] == []}
    if not lacking:
        return list(texts)
    return [
        "".join(character for character in text if lacking.isdisjoint(character.encode())) for text in texts
    ]


def _shown(text: str, ids: list[int], wanted: list[int], tokenizer: Tokenizer) -> str:
    """What to say of a difference: the text around it, and the ids from there on."""
    same = next(
        (i for i, (a, b) in enumerate(zip(ids, wanted, strict=False)) if a != b), min(len(ids), len(wanted))
    )
    place = len(tokenizer.decode(ids[:same]))
    part = text[max(0, place - 20) : place + 40]
    return (
        f"the text {json.dumps(part, ensure_ascii=False)} would give ids {ids[same : same + 8]} "
        f"instead of {wanted[same : same + 8]}"
    )


def probe_texts(tokenizer: Tokenizer, seed: int = 0) -> Iterator[str]:
    """The mixed corpus, the same for the same tokenizer."""
    draw = random.Random(seed)
    yield from _PROSE
    yield from (line for module in (textwrap, inspect) for line in _chunks(inspect.getsource(module), 600))
    yield from _white_space(draw)
    yield from _characters()
    yield from _vocabulary(tokenizer, draw)


def _chunks(text: str, size: int) -> Iterator[str]:
    yield from (text[start : start + size] for start in range(0, min(len(text), 20_000), size))


def _white_space(draw: random.Random) -> Iterator[str]:
    for space in _SPACES:
        for length in (1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 64, 100):
            yield space * length
            yield f"a{space * length}b{space * length}1{space * length}.{space * length}"
    for _ in range(300):
        yield "".join(draw.choice((*_SPACES, "a", "Z", "7", "é", "!", "'s", "你")) for _ in range(20))


def _characters() -> Iterator[str]:
    """Every assigned character of the common blocks, bare and in company."""
    for start, end in _BLOCKS:
        known = [chr(code) for code in range(start, end) if _agreed(chr(code))]
        yield "".join(known)
        for begin in range(0, len(known), 64):
            yield " ".join(known[begin : begin + 64])
            yield "".join(f"{character}a{character}1" for character in known[begin : begin + 64])


def _agreed(character: str) -> bool:
    """Whether Python and `tokenizers` know the character alike: their Unicode tables have different ages,
    which shows where a newer mark is sorted among others."""
    if unicodedata.category(character) in ("Cn", "Cs"):
        return False
    marked = f"\u0301{character}\u0316"
    return unicodedata.normalize("NFC", marked) == str(tokenizers.normalizers.NFC().normalize_str(marked))


def _vocabulary(tokenizer: Tokenizer, draw: random.Random) -> Iterator[str]:
    """Every piece of the vocabulary among others, some alone, and random strings of its characters."""
    pieces = [token.decode() for token in tokenizer.tokens if _is_text(token)]
    draw.shuffle(pieces)
    for begin in range(0, len(pieces), 30):
        yield "".join(pieces[begin : begin + 30])
    yield from pieces[:3000]
    letters = sorted({character for piece in pieces[:5000] for character in piece})
    for _ in range(500):
        yield "".join(draw.choices(letters, k=30))


def _is_text(token: bytes) -> bool:
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True
