"""The decoder with a cache gives what the decoder without one gives, whatever it is asked, in whatever order."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgelm_export import export_checkpoint
from edgelm_runtime import LanguageModel, load
from edgelm_runtime.engine.cached_decoder import MOST_CACHES, CachedDecoder
from edgelm_runtime.engine.io_binding import BoundRun
from edgelm_runtime.engine.kv_buffers import DeviceBuffer, HostBuffer, cache_device, make_buffer
from edgelm_runtime.engine.recompute_decoder import RecomputeDecoder
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import ClosedError, OptionError
from edgelm_runtime.loading import choose_decoder
from edgelm_runtime.model_file.metadata import read_model_file
from tests.small_models import small_checkpoint

ARCHITECTURES = [
    "gpt2", "grouped heads", "windows", "soft caps", "parallel",
    "int8 of gpt2", "int8 of grouped heads", "int8 of windows", "int8 of soft caps", "int8 of parallel",
    "int8, fp32 of gpt2", "cuda of gpt2", "cuda of windows", "cuda of soft caps", "cuda of parallel",
    "convolutions", "int8 of convolutions", "int4 of experts",
]  # fmt: skip
CONTEXT = 48
Ids = NDArray[np.int64]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A file with a cache by the name of its architecture."""
    folder = tmp_path_factory.mktemp("cached")

    def exported(name: str) -> Path:
        """In front of the name: precision of the weights, in blocks of 8 bits, and of the cache; or the target."""
        path = folder / f"{name}.onnx"
        if not path.exists():
            precision, _, architecture = name.rpartition(" of ")
            target, precision = ("cuda", "") if precision == "cuda" else ("cpu", precision)
            dtype, _, cache_dtype = precision.partition(", ")
            checkpoint = small_checkpoint(architecture, context_length=CONTEXT)
            bound: dict[str, Any] = {
                "max_ppl_increase": 1000.0,
                "min_agreement": 0,
                "cache_dtype": cache_dtype or "auto",
            }
            export_checkpoint(
                checkpoint,
                path,
                kv_cache=True,
                target=target,
                outputs=["hidden"],
                dtype=dtype or "fp32",
                **(bound if dtype else {}),
            )
        return path

    return exported


@pytest.fixture(params=ARCHITECTURES)
def model(
    request: pytest.FixtureRequest, files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A file of each architecture in turn."""
    return _on_its_device(request.param, files, monkeypatch)


@pytest.fixture(params=["grouped heads", "cuda of grouped heads"])
def llama(
    request: pytest.FixtureRequest, files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    return _on_its_device(request.param, files, monkeypatch)


def _on_its_device(name: str, files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file; where it is for cuda, its sessions act as they would there, in onnxruntime's memory of the CPU."""
    if name.startswith("cuda"):
        monkeypatch.setattr(Session, "device", "cpu")
        _copy_inputs(monkeypatch)
    return files(name)


def _copy_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions bind inputs as those of other devices do."""
    monkeypatch.setattr(Session, "copies_inputs", True)
    monkeypatch.setattr(Session, "binding", lambda session: CopyingBinding(session.raw.io_binding()))


class CopyingBinding:
    """Inputs other than the cache are copied when they are bound: a later change is not seen."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self._copies: dict[str, Ids] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)

    def bind_input(self, name: str, device: str, number: int, dtype: Any, shape: Any, address: int) -> None:
        if not name.startswith("past"):
            there = ctypes.cast(address, ctypes.POINTER(ctypes.c_int64))
            self._copies[name] = np.ctypeslib.as_array(there, shape).copy()
            address = self._copies[name].ctypes.data
        self._binding.bind_input(name, device, number, dtype, shape, address)


class Pair:
    """A decoder with a cache next to one without, over the same file."""

    def __init__(self, path: Path) -> None:
        self.session = Session(path, "cpu", 1)
        info = read_model_file(self.session, str(path))
        self.cached = CachedDecoder(self.session, info.context_length, info.vocab_size)
        self.plain = RecomputeDecoder(self.session, info.context_length, info.vocab_size)

    def check(self, rows: Sequence[Ids], counts: Sequence[int]) -> list[Ids]:
        """Compare their logits; gives what the graph was fed for it, run by run."""
        fed: list[Ids] = []
        run = BoundRun.__call__

        def noted(self: BoundRun, ids: Ids, *others: Any) -> Any:
            fed.append(ids.copy())
            return run(self, ids, *others)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BoundRun, "__call__", noted)
            found = self.cached(rows, counts)
        for one, other in zip(found, self.plain(rows, counts), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4, rtol=1e-4)
        return fed


def _ids(length: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, 259, length)


@pytest.mark.parametrize("pieces", [[10], [5, 1, 1, 1, 1, 1], [5, 5], [1] * 10, [9, 1], [3, 4, 3]])
def test_pieces_give_the_logits_of_the_whole(model: Path, pieces: list[int]) -> None:
    pair, ids = Pair(model), _ids(10)
    for end, piece in zip(np.cumsum(pieces), pieces, strict=True):
        fed = pair.check([ids[:end]], [piece])
        assert [one.size for one in fed] == [piece]


def test_whatever_is_asked_in_whatever_order(model: Path) -> None:
    """Batches that grow, shrink, change, repeat and contradict what is cached; rows up to the whole context."""
    pair, random = Pair(model), np.random.default_rng(1)
    texts = [random.integers(0, 4, CONTEXT) for _ in range(4)]  # few ids: accidental common beginnings
    for _ in range(60):
        rows = []
        for _ in range(random.integers(1, 5)):
            text = texts[random.integers(len(texts))]
            length = int(random.integers(1, CONTEXT + 1))
            tail = random.integers(0, 4, random.integers(0, min(4, length) + 1))
            rows.append(np.concatenate((text[: length - len(tail)], tail)))
        pair.check(rows, [int(random.integers(1, len(row) + 1)) for row in rows])


def test_only_what_is_new_is_fed(llama: Path) -> None:
    pair = Pair(llama)
    one, two, three = _ids(20, 1), _ids(20, 2), _ids(20, 3)
    sizes = lambda rows, counts: [fed.shape for fed in pair.check(rows, counts)]  # noqa: E731
    assert sizes([one[:12], two[:9], three[:15]], [1, 1, 1]) == [(1, 12), (1, 9), (1, 15)]
    assert sizes([one[:13], two[:10], three[:16]], [1, 1, 1]) == [(3, 1)], "one token each is one run"
    drafted = np.concatenate((one[:14], [5, 6, 7]))
    assert sizes([drafted, two[:11], three[:17]], [4, 1, 1]) == [(1, 4), (2, 1)]
    assert sizes([one[:15], three[:18]], [1, 1]) == [(2, 1)], (
        "a draft is forgotten; a row has left, the others go on"
    )
    assert sizes([one[:15], three[:18]], [1, 1]) == [(2, 1)], "asked again"
    assert sizes([one[:15], three[:18]], [9, 3]) == [(1, 9), (1, 3)], "logits of earlier tokens are wanted"


def test_samples_of_one_prompt_share_it(llama: Path) -> None:
    pair, prompt = Pair(llama), _ids(30)
    fed = pair.check([prompt] * 3, [1, 1, 1])
    assert [one.shape for one in fed] == [(1, 30), (2, 1)]


def test_a_window_that_slides_is_computed_anew(llama: Path) -> None:
    pair, ids = Pair(llama), _ids(CONTEXT + 2)
    assert [one.size for one in pair.check([ids[:CONTEXT]], [1])] == [CONTEXT]
    assert [one.size for one in pair.check([ids[1 : CONTEXT + 1]], [1])] == [CONTEXT]


def test_conversations_keep_a_cache_each(llama: Path) -> None:
    pair = Pair(llama)
    beginning = _ids(20)
    talks = [np.concatenate((beginning, _ids(24, seed))) for seed in range(1, MOST_CACHES + 1)]
    for talk in talks:
        pair.check([talk[:40]], [1])
    for end in (41, 42):
        for talk in talks:
            assert [one.size for one in pair.check([talk[:end]], [1])] == [1]
    pair.check([_ids(40, 99)], [1])  # one too many: the one that waits longest gives way
    assert [one.size for one in pair.check([talks[-1][:43]], [1])] == [1]
    assert [one.size for one in pair.check([talks[0][:43]], [1])] == [23]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "top_p": 0.95, "seed": 7},
    {"temperature": 1.2, "top_k": 20, "repeat_penalty": 1.1, "seed": 8, "lookup": 0},
    {"lookup": 5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_tokens_as_without_a_cache(model: Path, options: dict[str, Any]) -> None:
    """Single, in a batch and by samples, past the end of the context."""
    prompts = [_ids(12, 1).tolist(), _ids(30, 2).tolist(), [7, 8, 9] * 6, [1]]
    with load(model, threads=1) as cached, load(model, threads=1, decode="recompute") as plain:
        for prompt, more in ((prompts, {}), (prompts[2], {"n": 3}), (prompts[1], {})):
            results = [
                _tokens(lm, prompt, max_new_tokens=CONTEXT, **more, **options) for lm in (cached, plain)
            ]
            assert results[0] == results[1]


def _tokens(lm: LanguageModel, prompt: Any, **options: Any) -> list[list[int]]:
    found = lm.generate(prompt, **options)
    return [one.token_ids for one in (found if isinstance(found, list) else [found])]


def test_many_threads_at_once(llama: Path) -> None:
    prompts = [_ids(5 + seed, seed).tolist() for seed in range(8)]
    with load(llama, threads=1) as lm:
        alone = [_tokens(lm, prompt, max_new_tokens=20, seed=1, temperature=1.0) for prompt in prompts]
        with ThreadPoolExecutor(8) as pool:
            together = pool.map(
                lambda prompt: _tokens(lm, prompt, max_new_tokens=20, seed=1, temperature=1.0), prompts * 3
            )
            assert list(together) == alone * 3


def test_logits_that_were_given_stay(llama: Path) -> None:
    with load(llama, threads=1) as lm:
        first = lm.logits([1, 2, 3])
        kept = first.copy()
        lm.logits([1, 2, 9])
        assert (first == kept).all()


def test_a_failed_run_leaves_nothing_behind(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, ids = Pair(llama), _ids(20)
    pair.check([ids[:10]], [1])

    def fail(binding: Any) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(pair.session, "run_bound", fail)
        with pytest.raises(RuntimeError):
            pair.cached([ids[:12]], [1])
    assert [one.size for one in pair.check([ids[:12]], [1])] == [12]


def test_scores_and_vectors_of_a_file_with_a_cache(llama: Path) -> None:
    text = _ids(100).tolist()
    with load(llama, threads=1) as cached, load(llama, threads=1, decode="recompute") as plain:
        np.testing.assert_allclose(cached.score(text).logprobs, plain.score(text).logprobs, atol=1e-4)
        assert cached.embed(text[:9]).shape == (24,)


def test_what_decode_may_be(llama: Path, tmp_path: Path) -> None:
    without = tmp_path / "without.onnx"
    export_checkpoint(small_checkpoint(), without)
    for path, decode, name in [
        (llama, "auto", CachedDecoder), (llama, "recompute", RecomputeDecoder), (without, "auto", RecomputeDecoder),
    ]:  # fmt: skip
        with load(path, threads=1, decode=decode) as lm:  # type: ignore[arg-type]
            assert type(lm._decoder) is name
    with pytest.raises(OptionError, match="exported without a cache; export it with --kv-cache"):
        load(without, decode="cached")
    with pytest.raises(OptionError, match="decode is 'fast'"):
        load(without, decode="fast")  # type: ignore[arg-type]


def test_closing_frees_the_caches(llama: Path) -> None:
    lm = load(llama, threads=1)
    lm.generate([1, 2, 3], max_new_tokens=3)
    decoder = lm._decoder
    assert isinstance(decoder, CachedDecoder) and decoder._idle
    lm.close()
    assert not decoder._idle
    with pytest.raises(ClosedError):
        lm.generate([1, 2, 3])


def test_a_cache_lies_where_it_is_attended_to(
    files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a file for cuda has its cache there, and decodes from it by itself."""
    for name, device, decoder in (
        ("grouped heads", None, RecomputeDecoder), ("cuda of grouped heads", "cuda", CachedDecoder),
    ):  # fmt: skip
        session = Session(files(name), "cpu", 1)
        info = read_model_file(session, name)
        assert cache_device(session) is None
        assert type(choose_decoder("auto", session, info, name)) is CachedDecoder
        with monkeypatch.context() as patch:
            patch.setattr(Session, "provider", "CUDAExecutionProvider")
            assert cache_device(session) == device
            assert type(choose_decoder("auto", session, info, name)) is decoder
            assert type(choose_decoder("cached", session, info, name)) is CachedDecoder


def test_a_cache_beside_a_device(files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that stays in memory of the process, where the rest is computed elsewhere."""
    _copy_inputs(monkeypatch)
    pair, ids = Pair(files("grouped heads")), _ids(20)
    for end in (10, 11, 12, 15, 16):
        pair.check([ids[:end]], [1])


def test_slots_of_a_buffer_on_a_device() -> None:
    """The address of each slot, and what lies there after a copy."""
    states = np.arange(3 * 2 * 4 * 8, dtype=np.float32).reshape(3, 2, 4, 8)
    host, device = HostBuffer(states.copy()), make_buffer(states.copy(), "cpu")
    assert isinstance(device, DeviceBuffer)
    for buffer in (host, device):
        buffer.copy_slot(2, 0, 3)
        *about, shape, address = buffer.place(1, 3)
        assert about == ["cpu", 0, np.float32] and shape == (2, 2, 4, 8)
        found = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), shape)
        np.testing.assert_array_equal(found, states[1:])
        np.testing.assert_array_equal(buffer.states()[0, :, :3], states[2, :, :3])
        np.testing.assert_array_equal(buffer.states()[0, :, 3], states[0, :, 3])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_goes_on_with_a_session_of_its_own(llama: Path) -> None:
    with load(llama, threads=1) as lm:
        wanted = _tokens(lm, [1, 2, 3], max_new_tokens=8)
        child = os.fork()
        if child == 0:
            os._exit(0 if _tokens(lm, [1, 2, 3], max_new_tokens=8) == wanted else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
