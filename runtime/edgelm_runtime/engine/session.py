"""onnxruntime sessions: threads, execution providers, and what onnxruntime does not do by itself.

- Threads default to the smaller of CPU affinity and container quota; onnxruntime counts the machine's cores.
- The worker threads stop spinning when a run is over, so an idle process uses no CPU.
- A provider that is asked for and does not come up is an error; onnxruntime would fall back in silence.
- A session does not survive a fork: its threads stay in the parent, so that a run, and even its end, would wait
  for ever. A child process leaves what it inherited alone and makes its own at first use.
- Denormal numbers stay as they are: the option that makes them zero would also change the arithmetic of the
  program that loads a model, for good (and gained nothing on models that were trained to the end).
- CUDA multiplies float32 as float32. By default it rounds to 10 bits (TF32), and then a step and a longer pass, or the
  CPU and the GPU, would choose different tokens.
- Telemetry is off unless the environment already says otherwise.

This is the only module that imports onnxruntime.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgelm_runtime.engine.threads import default_threads
from edgelm_runtime.model_file.interface import TensorInfo

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

from edgelm_runtime.errors import ClosedError, ModelFileError, OptionError, ProviderError
from edgelm_runtime.model_file.weight_mmap import without_weights

SUFFIX = "ExecutionProvider"
ERRORS_ONLY = 3
PROVIDER_OPTIONS = {"CUDA" + SUFFIX: {"use_tf32": "0"}}


class Session:
    """One loaded graph. `run` may be called from many threads at once.

    Raises ModelFileError where the source is not a usable model, ProviderError where `provider` does not run.
    """

    def __init__(
        self,
        source: Path | bytes,
        provider: str = "auto",
        threads: int | None = None,
        optimize: bool = True,
    ) -> None:
        self._source = source
        self._providers = choose_providers(provider)
        self._options = _session_options(threads, optimize)
        self._lock = threading.Lock()
        self._closed = False
        self._session: Any = _create(source, self._options, self._providers)
        _open_sessions.add(self)
        if provider != "auto" and self.provider != self._providers[0]:
            raise ProviderError(
                f"the provider {provider!r} was asked for, but {_short(self.provider)!r} runs",
                "check its drivers and libraries, or use --provider cpu",
            )

    @property
    def provider(self) -> str:
        """Full name of the provider that runs, such as `CPUExecutionProvider`."""
        return str(self.raw.get_providers()[0])

    @property
    def device(self) -> str | None:
        """The device with memory of its own that computes, as I/O bindings call it; None for the CPU."""
        return "cuda" if self.provider == "CUDA" + SUFFIX else None

    @property
    def inputs(self) -> dict[str, TensorInfo]:
        """The graph's inputs, those with a default value included, by name."""
        required = self.raw.get_inputs()
        optional = self.raw.get_overridable_initializers()
        return {node.name: _tensor_info(node) for node in [*required, *optional]}

    @property
    def outputs(self) -> dict[str, TensorInfo]:
        """The graph's outputs by name."""
        return {node.name: _tensor_info(node) for node in self.raw.get_outputs()}

    @property
    def metadata(self) -> dict[str, str]:
        """The file's `metadata_props`."""
        return dict(self.raw.get_modelmeta().custom_metadata_map)

    def run(self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Compute `outputs` from `feeds`. Raises ClosedError after `close`, ModelFileError where it fails."""
        session = self.raw
        try:
            results: list[NDArray[Any]] = session.run(list(outputs), dict(feeds))
        except Exception as error:  # onnxruntime raises classes of its own with no common base
            raise _failed(error) from error
        return results

    @property
    def copies_inputs(self) -> bool:
        """Whether inputs in this process' memory are copied when they are bound, instead of read by each run."""
        return not self.provider.startswith("CPU")

    def binding(self) -> Any:
        """A new I/O binding, which holds for as long as `raw` stays the same. Raises ClosedError after `close`."""
        return self.raw.io_binding()

    def run_bound(self, binding: Any) -> None:
        """Compute what an I/O binding asks for. Raises as `run` does."""
        session = self.raw
        try:
            session.run_with_iobinding(binding)
        except Exception as error:
            raise _failed(error) from error

    @property
    def raw(self) -> Any:
        """The onnxruntime session of this process, for I/O binding. Raises ClosedError after `close`."""
        session = self._session
        if session is None:
            with self._lock:
                if self._closed:
                    raise ClosedError("the model is closed", "load it again")
                if self._session is None:
                    self._session = _create(self._source, self._options, self._providers)
                session = self._session
        return session

    def close(self) -> None:
        """Free the graph and its threads. Runs that are under way in other threads end first."""
        with self._lock:
            self._closed = True
            self._session = None

    def _leave_to_parent(self) -> None:
        """In a forked child: forget the parent's session without ever ending it."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._session))
        self._session = None
        self._lock = threading.Lock()


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _leave_sessions_to_parent() -> None:
    for session in _open_sessions:
        session._leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_sessions_to_parent)


def _failed(error: Exception) -> ModelFileError:
    return ModelFileError(f"the graph failed: {_one_line(error)}", "check the model with `edgelm verify`")


def choose_providers(provider: str) -> list[str]:
    """Provider names for onnxruntime, best first. `auto`: CUDA where this onnxruntime has it, else the CPU.

    Raises ProviderError for a provider that this onnxruntime does not have.
    """
    available = ort.get_available_providers()
    cpu = "CPU" + SUFFIX
    if provider == "auto":
        return [name for name in ("CUDA" + SUFFIX, cpu) if name in available]
    wanted = {provider.lower(), (provider + SUFFIX).lower()}
    for name in available:
        if name.lower() in wanted:
            return [name] if name == cpu else [name, cpu]
    raise ProviderError(
        f"this onnxruntime has no provider {provider!r}",
        f"it has {', '.join(_short(name) for name in available)}; others come with other onnxruntime packages",
    )


def _session_options(threads: int | None, optimize: bool) -> ort.SessionOptions:
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise OptionError(f"threads is {threads!r}", "give a whole number of at least 1")
    options = ort.SessionOptions()
    # More threads than processors only wait for each other, and enough of them end the process.
    options.intra_op_num_threads = min(threads, os.cpu_count() or threads) if threads else default_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if _saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


# `MatMulInteger` of a, uint8, and b, int8: an ONNX model of one node, opset 10.
_PRODUCT = (
    b'\x08\x04:O\n\x18\n\x01a\n\x01b\x12\x01c"\rMatMulInteger\x12\x00'
    b"Z\x0f\n\x01a\x12\n\n\x08\x08\x02\x12\x04\n\x00\n\x00Z\x0f\n\x01b\x12\n\n\x08\x08\x03\x12\x04\n\x00\n\x00"
    b"b\x0f\n\x01c\x12\n\n\x08\x08\x06\x12\x04\n\x00\n\x00B\x04\n\x00\x10\n"
)


@functools.cache
def _saturates() -> bool:
    """Whether onnxruntime's fast product of uint8 by int8 clips sums on this processor.

    x86 processors without VNNI add two products in 16 bits. There an exact way is asked for, which takes half as
    long again; with VNNI it would be a third of the speed given away (SmolLM2, 64 tokens: 28 against 18 ms).
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    session = ort.InferenceSession(_PRODUCT, options, providers=["CPUExecutionProvider"])
    feeds = {"a": np.full((4, 64), 255, np.uint8), "b": np.full((64, 32), 127, np.int8)}
    return bool((session.run(None, feeds)[0] != 64 * 255 * 127).any())


def _create(source: Path | bytes, options: ort.SessionOptions, providers: list[str]) -> ort.InferenceSession:
    if isinstance(source, Path):
        if source.is_dir():
            raise ModelFileError(f"{source} is a folder", "give the .onnx file in it")
        if not source.exists():
            raise ModelFileError(f"there is no model file {source}", "check the path")
    name = "the model given as bytes" if isinstance(source, bytes) else str(source)
    data = source if isinstance(source, bytes) else _mapped(source, options)
    try:
        configured = [(name, PROVIDER_OPTIONS.get(name, {})) for name in providers]
        return ort.InferenceSession(data, options, providers=configured)
    except Exception as error:  # onnxruntime raises classes of its own with no common base
        raise ModelFileError(
            f"{name} is not a usable ONNX model: {_one_line(error)}", "copy or export it again"
        ) from error


def _mapped(path: Path, options: ort.SessionOptions) -> bytes | str:
    """What to give onnxruntime so that it maps the weights of `path`, where that can be."""
    # Weights are looked for in the folder of the file itself, and a link may lead there.
    path = path.resolve()
    model = without_weights(path)
    if model is None:
        return str(path)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    return model


def _tensor_info(node: Any) -> TensorInfo:
    return TensorInfo(node.name, node.type, tuple(node.shape))


def _short(provider: str) -> str:
    return provider.removesuffix(SUFFIX).lower()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def on_device(array: NDArray[Any], device: str) -> Any:
    """`array` in the memory of `device`, as onnxruntime's `OrtValue`: a copy, except for `cpu`."""
    return ort.OrtValue.ortvalue_from_numpy(array, device, 0)
