"""A file of requests, one JSON object per line, and the file of their answers: interrupted, it goes on where it was.

An answer is one line that names its request by number and content, and is written at once when it is finished. So a
kill loses the answers under way and no other, a half-written last line is taken away by the next run, and a file of
answers to other requests, or by another model, is recognised before anything is added to it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from edgelm_runtime.errors import EdgelmError, MissingExtraError, OptionError, OutputError

if TYPE_CHECKING:
    from edgelm_runtime.serving.engine import Engine

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""From the object of a line to what is said about it. Raises EdgelmError for a request that cannot be answered."""

NAMES = ("custom_id", "id")
"""Fields of a request that name it for its sender; answers repeat them."""


@dataclass
class Tally:
    """What a run did: requests of this part in all, those answered by earlier runs, and those that failed now."""

    requests: int = 0
    earlier: int = 0
    failed: int = 0


def answer_lines(
    lines: Sequence[bytes],
    output: Path,
    answer: Answer,
    *,
    settings: Any = None,
    part: tuple[int, int] = (1, 1),
    workers: int = 8,
    progress: Callable[[int], None] = lambda _: None,
) -> Tally:
    """Answer the requests in `lines`, `workers` at a time, and add each answer to `output` when it is finished.

    `part` (i, n) takes every n-th request from the i-th on. `settings` is whatever else the answers depend on, as
    JSON. A request that fails gets an answer with an `error`. Raises OptionError where `output` holds answers to
    something else, OutputError where it cannot be written.
    """
    first, step = part
    wanted = {
        f"{number}-{_digest(lines[number], settings)}": lines[number]
        for number in range(first - 1, len(lines), step)
        if lines[number].strip()
    }
    tally = Tally(len(wanted))
    try:
        with output.open("a+b") as file:
            _lock(file)
            answered = _answered(file, output, wanted)
            tally.earlier = len(answered)
            progress(tally.earlier)
            left = ((key, line) for key, line in wanted.items() if key not in answered)
            for result in _finished(left, answer, workers):
                tally.failed += "error" in result and result["error"] is not None
                file.write(json.dumps(result, ensure_ascii=False).encode() + b"\n")
                file.flush()
                progress(1)
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror}", "choose another place") from error
    return tally


def _digest(line: bytes, settings: Any) -> str:
    return hashlib.sha256(line.strip() + b"\n" + json.dumps(settings, sort_keys=True).encode()).hexdigest()[
        :16
    ]


def _lock(file: IO[bytes]) -> None:
    """Raise OutputError where another process is writing the same file (where the system has locks of this kind)."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(
            f"another run is writing {file.name}", "wait for it, or choose another file"
        ) from None


def _answered(file: IO[bytes], output: Path, wanted: Mapping[str, bytes]) -> set[str]:
    """The requests that have their answer in the file; takes away a last line that a kill has left unfinished."""
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    answered = set()
    for number, line in enumerate(content[:whole].splitlines(), 1):
        try:
            key = json.loads(line)["answers"]
        except (ValueError, KeyError, TypeError):
            raise OptionError(
                f"line {number} of {output} is no answer of edgelm batch", "choose another file"
            ) from None
        if key not in wanted:
            raise OptionError(
                f"line {number} of {output} answers another request, or by another model or with other options",
                "choose another file, or delete it",
            )
        answered.add(key)
    if whole < len(content):
        os.truncate(file.fileno(), whole)
    return answered


def _finished(
    requests: Iterator[tuple[str, bytes]], answer: Answer, workers: int
) -> Iterator[dict[str, Any]]:
    """The answers in the order in which they are finished. No more requests are read than are being answered."""
    running: set[Future[dict[str, Any]]] = set()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="edgelm-batch")
    try:
        for key, line in requests:
            running.add(pool.submit(_answered_line, key, line, answer))
            if len(running) >= workers:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (one.result() for one in done)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (one.result() for one in done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _answered_line(key: str, line: bytes, answer: Answer) -> dict[str, Any]:
    named: dict[str, Any] = {"answers": key}
    try:
        try:
            request = json.loads(line)
        except ValueError as error:
            raise OptionError(f"the line is not JSON: {error}", 'write {"prompt": "..."}') from None
        if not isinstance(request, dict):
            raise OptionError("the line is no JSON object", 'write {"prompt": "..."}')
        named |= {name: request[name] for name in NAMES if name in request}
        return named | answer(request)
    except MissingExtraError:  # true of every line of its kind: the whole run ends
        raise
    except (EdgelmError, RecursionError, TypeError) as error:  # TypeError: a field that is no option's name
        return named | {"error": {"message": " ".join(str(error).split())}}


def answer_prompt(engine: Engine, request: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The text for {"prompt": text or ids, ...} or {"messages": [...], ...}; other fields are options of `generate`.

    `defaults` are options that the request does not name. Raises OptionError for what cannot be used.
    """
    options = {**defaults, **{name: value for name, value in request.items() if name not in NAMES}}
    if ("prompt" in options) == ("messages" in options):
        raise OptionError("a request has a prompt or messages", 'write {"prompt": "..."}')
    if "messages" in options:
        ticket = engine.submit_chat(options.pop("messages"), **options)
    else:
        ticket = engine.submit(options.pop("prompt"), **options)
    result = ticket.result()
    if result.finish_reason == "cancelled":
        raise KeyboardInterrupt  # the engine is closing: this is no answer to keep
    usage = {"prompt_tokens": result.stats.prompt_tokens, "completion_tokens": len(result.token_ids)}
    about = {
        name: value for name, value in asdict(result).items() if name not in ("stats", "text", "token_ids")
    }
    scored = {name: value for name, value in about.items() if value is not None}
    return {"text": result.text, "token_ids": result.token_ids, **scored, "usage": usage}
