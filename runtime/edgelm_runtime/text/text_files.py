"""Bytes of a file or a stream as text, the same way everywhere."""

from __future__ import annotations

import codecs
from typing import Literal, get_args

from edgelm_runtime.errors import OptionError, shown

DecodeErrors = Literal["error", "replace"]


def as_text(content: bytes, name: str, encoding: str = "utf-8", decode_errors: DecodeErrors = "error") -> str:
    """The text in `content`, without a byte order mark, its lines ended by a line feed alone.

    `name` stands for the file in messages. `decode_errors` "replace" puts U+FFFD where bytes are not text of that
    encoding. Raises OptionError for such bytes otherwise, with the place of the first, and for an unknown encoding.
    """
    if decode_errors not in get_args(DecodeErrors):
        raise OptionError(
            f"decode_errors is {shown(decode_errors)}", f"choose one of {', '.join(get_args(DecodeErrors))}"
        )
    try:
        known = codecs.lookup(encoding).name
        text = content.decode(known, "strict" if decode_errors == "error" else "replace")
    except UnicodeDecodeError as error:
        bad = content[error.start : error.start + 1].hex()
        raise OptionError(
            f"{name} is not {known.upper()} text: byte 0x{bad} at offset {error.start}",
            "name its encoding, or have such bytes replaced (--encoding, --decode-errors replace)",
        ) from error
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        # Some of Python's codecs turn bytes into bytes.
        raise OptionError(
            f"there is no text encoding {shown(encoding)}", "name one that Python knows, such as cp1252"
        ) from error
    if not isinstance(text, str):
        raise OptionError(f"{shown(encoding)} is no text encoding", "name one such as cp1252")
    return text.removeprefix("\ufeff").replace("\r\n", "\n")
