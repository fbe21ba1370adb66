"""The engine: what one request gets does not depend on what else runs, and nobody's end is another's."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fakes
import numpy as np
import pytest

from edgelm_runtime import ClosedError, LanguageModel, OptionError, QueueFullError, load

# The window of `long` never slides in these tests; that of CACHED, of 24 tokens, does.
FILES = [fakes.TINY, fakes.CACHED]
ENDLESS = 10**9


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def lm(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    with load(request.param, threads=1) as model:
        yield model


@pytest.fixture
def cached() -> Iterator[LanguageModel]:
    with load(fakes.CACHED, threads=1) as model:
        yield model


def _requests(seed: int, count: int) -> list[tuple[Any, dict[str, Any]]]:
    """Prompts, some of them with a common beginning, and options of every kind."""
    choose = random.Random(seed)
    common = [choose.randrange(200) for _ in range(14)]
    made = []
    for index in range(count):
        prompt = [choose.randrange(200) for _ in range(choose.randrange(1, 23))]
        if choose.random() < 0.4:
            prompt = [*common, *prompt[:8]]
        options: dict[str, Any] = {
            "max_new_tokens": choose.randrange(0, 40),
            "seed": index,
            "temperature": choose.choice([0.0, 0.7, 1.2]),
            "top_k": choose.choice([0, 5]),
            "repeat_penalty": choose.choice([1.0, 1.3]),
            "overflow": choose.choice(["slide", "stop"]),
            "lookup": choose.choice([0, 3, "auto"]),
            "logprobs": choose.choice([None, 2]),
            "stop": choose.choice([(), ("e", "0")]),
        }
        made.append((prompt, options))
    return made


@pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")
def test_the_same_text_whatever_else_runs(lm: LanguageModel) -> None:
    """16 callers; requests join and leave at random, some are cancelled, dropped or fail; all others get what they
    get alone."""
    requests = _requests(1, 96)
    alone = [lm.generate(prompt, **options) for prompt, options in requests]

    def call(caller: int) -> None:
        choose = random.Random(caller)
        for index in range(caller, len(requests), 16):
            time.sleep(choose.random() / 100)
            disturbance = choose.random()
            if disturbance < 0.2:
                engine.submit([caller], max_new_tokens=ENDLESS, seed=0, temperature=1.0)  # dropped at once
            elif disturbance < 0.4:
                ticket = engine.submit([caller], max_new_tokens=ENDLESS, seed=0, temperature=1.0)
                next(iter(ticket))
                ticket.cancel()
            elif disturbance < 0.5:
                failing = engine.submit([caller], processor=lambda ids, logits: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    failing.result()
            prompt, options = requests[index]
            found = engine.submit(prompt, **options).result()
            assert found.text == alone[index].text
            assert found.token_ids == alone[index].token_ids
            assert found.finish_reason == alone[index].finish_reason
            np.testing.assert_allclose(found.logprobs or [], alone[index].logprobs or [], atol=1e-4)

    with lm.engine(parallel=5, queue=100) as engine, ThreadPoolExecutor(16) as callers:
        list(callers.map(call, range(16)))
        status = _idle(engine)
    assert status.finished["cancelled"] + status.finished["error"] == status.submitted - len(requests)
    assert status.tokens > 0 and status.first_tokens > 0 and status.refused == 0


def _idle(engine: Any, seconds: float = 30.0) -> Any:
    """The engine's counts when nothing is left to do."""
    end = time.monotonic() + seconds
    while (status := engine.status()).active or status.queued:
        assert time.monotonic() < end, f"still busy: {status}"
        time.sleep(0.01)
    return status


def test_pieces_stats_and_samples(lm: LanguageModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 6, "temperature": 1.0, "seed": 3}
    with lm.engine() as engine:
        ticket = engine.submit("The ", **options)
        pieces = list(ticket)
        assert pieces == list(lm.stream("The ", **options)) == list(ticket)
        assert ticket.done and ticket.stats.tokens == ticket.result().stats.tokens == len(
            ticket.result().token_ids
        )
        samples = [engine.submit("The ", sample=sample, **options) for sample in range(3)]
        assert [one.result().text for one in samples] == [
            one.text for one in lm.generate("The ", n=3, **options)
        ]
        messages = [{"role": "user", "content": "Hi"}]
        assert (
            engine.submit_chat(messages, max_new_tokens=4).result().text
            == lm.chat(messages, max_new_tokens=4).text
        )


def test_functions_that_are_called(lm: LanguageModel) -> None:
    """From the engine's thread; one set late is told what there is already; one that fails ends its request alone."""
    with lm.engine() as engine:
        ticket = engine.submit("The ", max_new_tokens=5)
        whole = ticket.result()
        told: list[str] = []
        ended: list[BaseException | None] = []
        ticket.on_piece, ticket.on_end = lambda piece: told.append(piece.text), ended.append
        assert "".join(told) == whole.text and ended == [None]
        threads: set[str] = set()
        engine.submit(
            "The ", max_new_tokens=5, on_token=lambda _: threads.add(threading.current_thread().name)
        ).result()
        assert threads == {"edgelm-engine"}

        def fail(piece: Any) -> None:
            raise RuntimeError("the caller's own")

        broken = engine.submit("The ", max_new_tokens=ENDLESS)
        broken.on_end = ended.append
        with pytest.raises(RuntimeError):
            broken.on_piece = fail
            broken.result()
        assert isinstance(_idle(engine) and ended[-1], RuntimeError)
        assert engine.submit("The ", max_new_tokens=5).result().text == whole.text


def test_refused_at_once(lm: LanguageModel) -> None:
    with lm.engine(parallel=1, queue=1) as engine:
        for wrong in ({"temperature": -1}, {"unknown": 1}, {"overflow": "error", "max_new_tokens": ENDLESS}):
            with pytest.raises(OptionError):
                engine.submit("The ", **wrong)
        held = [engine.submit("The ", max_new_tokens=ENDLESS) for _ in range(2)]
        with pytest.raises(QueueFullError, match="2 requests are here"):
            engine.submit("The ")
        assert engine.status().refused == 1 and engine.ping()
        held[0].cancel()
        assert held[0].result().finish_reason == "cancelled"
        assert next(iter(held[1])).token_id is not None, "the one that waited has its slot"
    assert held[1].result().finish_reason == "cancelled"
    for wrong in ({"parallel": 0}, {"parallel": 1.5}, {"queue": -1}):
        with pytest.raises(OptionError):
            lm.engine(**wrong)


def test_whoever_goes_away_frees_the_slot_within_a_step(lm: LanguageModel) -> None:
    with lm.engine(parallel=1) as engine:
        ticket = engine.submit("The ", max_new_tokens=ENDLESS)
        waiting = engine.submit("The ", max_new_tokens=ENDLESS)
        next(iter(ticket))
        steps = engine.status().steps
        del ticket, waiting
        gc.collect()
        gone = _idle(engine)
        assert gone.steps <= steps + 100 and gone.finished == {"cancelled": 2}
        event = threading.Event()
        event.set()
        assert engine.submit("The ", cancel=event).result().finish_reason == "cancelled"
        assert engine.submit("The ", max_time=1e-9).result().finish_reason == "time"
        assert engine.submit("The ", max_new_tokens=0).result().finish_reason == "length"


def test_closing(lm: LanguageModel) -> None:
    engine = lm.engine(parallel=1)
    short = [engine.submit("The ", max_new_tokens=3) for _ in range(3)]
    engine.close(drain=60)
    assert [ticket.result().finish_reason for ticket in short] == ["length"] * 3
    engine = lm.engine(parallel=1)
    endless = [engine.submit("The ", max_new_tokens=ENDLESS) for _ in range(2)]
    engine.close(drain=0.05)
    assert [ticket.result().finish_reason for ticket in endless] == ["cancelled"] * 2
    assert not engine.ping()
    for call in (
        lambda: engine.submit("The "),
        lambda: engine.submit_chat([{"role": "user", "content": "a"}]),
    ):
        with pytest.raises(ClosedError):
            call()
    left = lm.engine()
    ticket = left.submit("The ", max_new_tokens=ENDLESS)
    lm.close()
    assert ticket.result().finish_reason == "cancelled"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_the_engine_stays_in_its_process(cached: LanguageModel) -> None:
    with cached.engine() as engine:
        engine.submit("The ", max_new_tokens=3).result()
        child = os.fork()
        if child == 0:
            try:
                engine.submit("The ")
            except ClosedError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_failed_pass_ends_only_what_cannot_be_computed(
    cached: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph fails for one of the rows that run together."""
    options: dict[str, Any] = {"max_new_tokens": 8, "seed": 1, "temperature": 1.0}
    wanted = [cached.generate([number], **options).token_ids for number in range(4)]
    from edgelm_runtime.engine.io_binding import BoundRun

    run = BoundRun.__call__

    def fragile(self: BoundRun, ids: Any, *rest: Any) -> Any:
        if (ids == 77).any():
            raise MemoryError("no room for this row")
        return run(self, ids, *rest)

    with monkeypatch.context() as patch, cached.engine(parallel=5) as engine:
        patch.setattr(BoundRun, "__call__", fragile)
        broken = engine.submit([5], forced_tokens=[1, 2, 77], max_new_tokens=9)
        tickets = [engine.submit([number], **options) for number in range(4)]
        assert [ticket.result().token_ids for ticket in tickets] == wanted
        with pytest.raises(MemoryError):
            broken.result()


def test_a_common_beginning_is_computed_once(cached: LanguageModel) -> None:
    common = list(range(20))
    with cached.engine(parallel=3) as engine:
        tickets = [engine.submit([*common, number], max_new_tokens=2) for number in range(50, 56)]
        for ticket in tickets:
            ticket.result()
        status = engine.status()
    assert status.reused_tokens >= 5 * len(common)
    assert 0 < status.cache_bytes <= status.cache_bytes_limit
    assert 0 < status.cache_tokens <= 3 * 24


def test_a_prompt_is_computed_in_chunks(cached: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """For one caller: cancelling does not wait for the whole. For several: the others go on between the chunks."""
    from edgelm_runtime.engine import kv_cache

    prompt = [number % 7 for number in range(24)]
    whole = cached.generate(prompt, max_new_tokens=1, logprobs=0)
    monkeypatch.setattr(kv_cache, "chunk_size", lambda session: 4)
    with load(fakes.CACHED, threads=1) as lm:
        cancel = threading.Event()
        runs = _counted(monkeypatch, lambda count: cancel.set() if count == 2 else None)
        assert lm.generate(prompt, max_new_tokens=5, cancel=cancel).finish_reason == "cancelled"
        assert len(runs) == 2
        in_chunks = lm.generate(prompt, max_new_tokens=1, logprobs=0)
        assert in_chunks.token_ids == whole.token_ids
        np.testing.assert_allclose(in_chunks.logprobs or [], whole.logprobs or [], atol=1e-5)
        with lm.engine() as engine:
            talker = engine.submit([1], max_new_tokens=ENDLESS, overflow="stop")
            next(iter(talker))
            del runs[:]
            late = engine.submit([9, *prompt[1:]], max_new_tokens=1)
            late.result()
            assert any(size == 1 for size in runs[1:5]), "a step of the other between the chunks"


def _counted(monkeypatch: pytest.MonkeyPatch, after: Any) -> list[int]:
    """How many tokens each run of a graph is fed, from now on."""
    sizes: list[int] = []
    from edgelm_runtime.engine.io_binding import BoundRun

    run = BoundRun.__call__

    def noted(self: BoundRun, ids: Any, *rest: Any) -> Any:
        sizes.append(ids.size)
        result = run(self, ids, *rest)
        after(len(sizes))
        return result

    monkeypatch.setattr(BoundRun, "__call__", noted)
    return sizes


def test_a_batch_gives_its_memory_back(cached: LanguageModel) -> None:
    """Neither bindings nor slots grow with the calls before."""
    for rows in (40, 3, 17, 1):
        cached.generate([[number] for number in range(rows)], max_new_tokens=3)
    decoder: Any = cached._decoder
    (cache,) = decoder._idle
    assert len(cache._held) <= 8 and len(cache._bindings) <= 8 and cache._size[0] <= 8
    assert all(len(buffer.states()) <= 8 for buffer in cache._past.values())


def test_rows_without_a_cache_are_passes_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of similar length together, and each row its own logits."""
    from edgelm_runtime.engine import graph_inputs

    monkeypatch.setattr(graph_inputs, "MOST_TOKENS", 20)
    with load(fakes.TINY, threads=1) as lm:
        rows = [np.arange(length) for length in (3, 20, 4, 9, 10, 1)]
        counts = [1, 2, 1, 3, 1, 1]
        sizes: list[tuple[int, ...]] = []
        run = lm._session.run

        def noted(outputs: Any, feeds: Any) -> Any:
            sizes.append(feeds["input_ids"].shape)
            return run(outputs, feeds)

        monkeypatch.setattr(lm._session, "run", noted)
        found = lm._decoder(rows, counts)
        assert sizes == [(3, 4), (2, 10), (1, 20)]
        for row, count, logits in zip(rows, counts, found, strict=True):
            np.testing.assert_allclose(logits, lm._decoder([row], [count])[0], atol=1e-5)
