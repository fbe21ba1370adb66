"""Sessions: threads, providers, forks, the end."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import CACHED, TINY

from edgelm_runtime import ClosedError, ModelFileError, OptionError, ProviderError, load
from edgelm_runtime.engine import session_options, threads
from edgelm_runtime.engine.session import Session
from edgelm_runtime.engine.threads import default_threads

FORKS = hasattr(os, "fork")


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "two"])
def test_threads_must_be_a_number(wrong: Any) -> None:
    with pytest.raises(OptionError, match="threads"):
        Session(TINY, threads=wrong)


def test_threads_follow_affinity_and_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    for quota, expected in ((None, 6), (2, 2), (99, 6)):
        monkeypatch.setattr("edgelm_runtime.engine.threads.quota_cpus", lambda quota=quota: quota)
        assert default_threads() == expected


def test_an_unknown_provider_names_those_there_are() -> None:
    with pytest.raises(ProviderError, match=r"no provider 'warp'.*cpu"):
        load(TINY, provider="warp")


def test_a_provider_that_does_not_come_up_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime falls back to the CPU in silence; here it is made to, by a session that says it did."""
    import onnxruntime

    class Fallen(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, data: Any, options: Any, providers: list[str], **rest: Any) -> None:
            super().__init__(data, options, providers=["CPUExecutionProvider"], **rest)

    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    monkeypatch.setattr(onnxruntime, "InferenceSession", Fallen)
    with pytest.raises(ProviderError, match="'cuda' was asked for, but 'cpu' runs"):
        load(TINY, provider="cuda")
    with load(TINY, provider="auto") as lm:
        assert lm.provider == "CPUExecutionProvider"


def test_a_closed_session_says_so() -> None:
    session = Session(TINY, "cpu", 1)
    session.close()
    session.close()
    for use in (lambda: session.inputs, lambda: session.provider, lambda: session.run(["logits"], {})):
        with pytest.raises(ClosedError, match="load it again"):
            use()


def test_a_graph_that_fails_is_named() -> None:
    session = Session(TINY, "cpu", 1)
    with pytest.raises(ModelFileError, match="graph failed"):
        session.run(["logits"], {"input_ids": np.array([[10**6]])})
    with pytest.raises(ModelFileError, match="graph failed"):
        session.run(["logits"], {"input_ids": np.zeros((1, 2), np.float32)})


def test_closing_while_others_run_ends_cleanly() -> None:
    """Runs under way finish, later ones raise ClosedError; nothing else happens."""
    lm = load(TINY, threads=1)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                lm.generate("abc", max_new_tokens=5, lookup=0)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for worker in workers:
        worker.start()
    time.sleep(0.05)
    lm.close()
    for worker in workers:
        worker.join(20)
    assert [type(error) for error in errors] == [ClosedError] * 4


def wait_for(pid: int, seconds: float = 30) -> int | None:
    """Exit status of a child; None, and the child killed, where it hangs."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


@pytest.mark.skipif(not FORKS, reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", [TINY, CACHED])
def test_a_forked_child_generates_and_ends(path: Path) -> None:
    """With two threads in the session, which a child does not inherit; by every way of ending."""
    lm = load(path, threads=2)
    expected = lm.generate("abc", max_new_tokens=6).token_ids

    def child(use: bool, close: bool) -> int | None:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = int(use and lm.generate("abc", max_new_tokens=6).token_ids != expected)
                if close:
                    lm.close()
            finally:
                os._exit(status)
        return wait_for(pid)

    assert [child(True, False), child(False, True), child(True, True)] == [0, 0, 0]
    assert lm.generate("abc", max_new_tokens=6).token_ids == expected


@pytest.mark.skipif(not FORKS, reason="this system does not fork")
def test_a_forked_child_that_ends_as_python_does_is_not_held_up(tmp_path: Path) -> None:
    """The interpreter's own end destroys every object; the parent's session must survive it unharmed."""
    import subprocess

    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys, warnings, edgelm_runtime\n"
        "warnings.simplefilter('ignore')\n"
        f"lm = edgelm_runtime.load({str(TINY)!r}, threads=2)\n"
        "lm.generate('abc', max_new_tokens=3)\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "lm.generate('abc', max_new_tokens=3)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, program], env=environment, timeout=60, check=True)


def _in_child(lm: Any, queue: Any) -> None:
    queue.put(lm.generate("abc", max_new_tokens=6).token_ids)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_multiprocessing_by_fork() -> None:
    lm = load(TINY.read_bytes(), threads=2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_in_child, args=(lm, queue), daemon=True)
    process.start()
    assert queue.get(timeout=30) == lm.generate("abc", max_new_tokens=6).token_ids
    process.join(30)
    assert process.exitcode == 0


def test_the_arithmetic_of_the_program_around_is_left_alone() -> None:
    """onnxruntime can make the whole thread treat denormal numbers as zero; a library may not."""
    smallest = np.array([5e-324])
    with load(TINY) as lm:
        lm.generate("a", max_new_tokens=1)
        assert float((smallest * 2)[0]) == 1e-323


def test_products_of_bytes_are_exact_here() -> None:
    """Either this processor does not clip sums, or the sessions ask for the way that does not."""
    session = Session(session_options._PRODUCT, "cpu", 1)
    feeds = {"a": np.full((4, 64), 255, np.uint8), "b": np.full((64, 32), 127, np.int8)}
    assert (session.run(("c",), feeds)[0] == 64 * 255 * 127).all()


@pytest.mark.parametrize("saturates", [False, True])
def test_the_exact_way_is_asked_for_where_the_fast_one_clips(
    saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_options, "_saturates", lambda: saturates)
    options = session_options.session_options(1, True)
    key = "session.x64quantprecision"
    if saturates:
        assert options.get_session_config_entry(key) == "1"
    else:
        with pytest.raises(RuntimeError):
            options.get_session_config_entry(key)


@pytest.mark.parametrize("text", ["max 100000", "99 x", "", "x"])
def test_a_quota_without_a_limit_counts_for_nothing(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(threads, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(threads, "OWN_GROUPS", tmp_path / "nothing")
    assert threads.quota_cpus() is None


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000", "a/cpu.max": "max 100000"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "800000 100000", "a/cpu.max": "300000 100000"}, 3),  # the group above binds too
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "other/cpu.max": "100000 100000"}, None),
        ("0::/../outside\n", {"cpu.max": "400000 100000"}, 4),  # a container's own namespace
        ("0::/docker/1a\n", {"cpu.max": "400000 100000"}, 4),
        ("4:memory:/m\n3:cpu,cpuacct:/g\n",
         {"cpu,cpuacct/g/cpu.cfs_quota_us": "250000", "cpu,cpuacct/g/cpu.cfs_period_us": "100000"}, 3),
        ("3:cpu:/g\n", {"cpu/g/cpu.cfs_quota_us": "-1", "cpu/g/cpu.cfs_period_us": "100000"}, None),
    ],
)  # fmt: skip
def test_the_quota_is_that_of_the_process_own_control_group(
    groups: str, files: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(threads, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(threads, "OWN_GROUPS", tmp_path / "own")
    assert threads.quota_cpus() == expected


def test_more_threads_than_processors_are_not_made() -> None:
    options = session_options.session_options(99_999, True)
    assert options.intra_op_num_threads == os.cpu_count()


def test_a_loaded_model_is_not_pickled_or_copied() -> None:
    with load(TINY, threads=1) as lm:
        for copied in (pickle.dumps, copy.deepcopy):
            with pytest.raises(
                OptionError, match="a loaded model cannot be pickled or copied; pass its path"
            ):
                copied(lm)


@pytest.mark.skipif(not FORKS, reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_while_others_generate_is_not_held_up(capfd: pytest.CaptureFixture[str]) -> None:
    """Locks that another thread holds at that moment are made anew, and the child says nothing of its own."""
    lm = load(CACHED, threads=2)
    expected = lm.generate("abc", max_new_tokens=4).token_ids
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            lm.generate("xyz", max_new_tokens=3)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    statuses = []
    try:
        for turn in range(20):
            # A lock taken for certain, as another thread may hold it.
            held = lm._decoder._lock if turn % 2 else None  # type: ignore[attr-defined]
            if held is not None:
                held.acquire()
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    status = int(lm.generate("abc", max_new_tokens=4).token_ids != expected)
                    lm.close()
                finally:
                    os._exit(status)
            if held is not None:
                held.release()
            statuses.append(wait_for(pid))
    finally:
        end.set()
        for worker in workers:
            worker.join()
    assert statuses == [0] * 20
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("path", [TINY, CACHED])
def test_closing_frees_the_session_whatever_is_under_way(path: Path) -> None:
    """A suspended stream, and a pass that ends after `close`, hold on to nothing."""
    lm = load(path, threads=1)
    stream = lm.stream("abc", max_new_tokens=20)
    next(stream)
    session = weakref.ref(lm._session._session)
    started, passed = threading.Event(), threading.Event()

    def slow(ids: Any, logits: Any) -> Any:
        started.set()
        passed.wait(20)
        return logits

    errors: list[BaseException] = []

    def work() -> None:
        try:
            lm.generate("abcd", max_new_tokens=5, processor=slow)
        except ClosedError as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    assert started.wait(20)
    lm.close()
    passed.set()
    worker.join(20)
    with pytest.raises(ClosedError):
        list(stream)
    del worker
    errors[0].__traceback__ = None
    gc.collect()
    assert session() is None
