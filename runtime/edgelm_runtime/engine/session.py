"""onnxruntime sessions, and what onnxruntime does not do by itself.

- A provider that is asked for and does not come up is an error; onnxruntime would fall back in silence.
- A file that is replaced while it is loaded, or before a forked child loads it again, is never mixed with the new one.
- A session does not survive a fork: its threads stay in the parent, so that a run, and even its end, would wait
  for ever. A child process leaves what it inherited alone and makes its own at first use.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import onnxruntime as ort
from numpy.typing import NDArray

from edgelm_runtime.engine.creation import create, one_line
from edgelm_runtime.engine.forks import renewed_in_children
from edgelm_runtime.engine.providers import CPU, CUDA, check_provider, choose_providers
from edgelm_runtime.engine.session_options import check_threads
from edgelm_runtime.errors import ClosedError, ModelFileError, OptionError
from edgelm_runtime.model_file.interface import TensorInfo
from edgelm_runtime.model_file.opened import OpenModel


class Session:
    """One loaded graph. `run` may be called from many threads at once.

    `as_stored`: in less memory and slower, with weights read as they lie in the file. `weights` is the folder of the
    files that bytes refer to. Raises ModelFileError where the source is not a usable model, ProviderError where
    `provider` does not run.
    """

    def __init__(
        self,
        source: Path | bytes,
        provider: str = "auto",
        threads: int | None = None,
        optimize: bool = True,
        as_stored: bool = False,
        weights: Path | None = None,
    ) -> None:
        self._providers = choose_providers(provider)
        check_threads(threads)
        self._threads, self._optimize, self._as_stored = threads, optimize, as_stored
        self._weights = weights
        self._lock = threading.Lock()
        self._closed = False
        self._source = source if isinstance(source, bytes) else OpenModel(source)
        try:
            self._session: Any = self._create()
            check_provider(provider, self._providers, self.provider)
        except BaseException:
            self.close()
            raise
        renewed_in_children(self)

    @property
    def model(self) -> OpenModel | None:
        """The file that was loaded; None for bytes."""
        return self._source if isinstance(self._source, OpenModel) else None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def provider(self) -> str:
        """Full name of the provider that runs, such as `CPUExecutionProvider`."""
        return str(self.raw.get_providers()[0])

    @property
    def device(self) -> str | None:
        """The device with memory of its own that computes, as I/O bindings call it; None for the CPU."""
        return "cuda" if self.provider == CUDA else None

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
        """The file's `metadata_props`. Raises ModelFileError where they are not UTF-8."""
        session = self.raw
        try:
            return dict(session.get_modelmeta().custom_metadata_map)
        except UnicodeDecodeError as error:
            name = self.model.name if self.model is not None else "the model given as bytes"
            raise ModelFileError(f"{name} has damaged metadata: {error}", "export the model again") from error

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
        return self.provider != CPU

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
                    self._session = self._create()
                session = self._session
        return session

    def _create(self) -> ort.InferenceSession:
        return create(
            self._source, self._threads, self._optimize, self._as_stored, self._providers, self._weights
        )

    def close(self) -> None:
        """Free the graph and its threads, when runs that are under way in other threads have ended."""
        with self._lock:
            self._closed = True
            self._session = None
            if isinstance(self._source, OpenModel):
                self._source.close()

    def renew_in_child(self) -> None:
        """In a forked child: forget the parent's session without ever ending it."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._session))
        self._session = None
        self._lock = threading.Lock()

    def __reduce__(self) -> NoReturn:
        raise OptionError("a loaded model cannot be pickled or copied", "pass its path on, and load it there")


def _failed(error: Exception) -> ModelFileError:
    return ModelFileError(f"the graph failed: {one_line(error)}", "check the model with `edgelm verify`")


def _tensor_info(node: Any) -> TensorInfo:
    return TensorInfo(node.name, node.type, tuple(node.shape))
