"""The float32 file that others are made from: its graph, its answers, and what rounding is fitted to."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx_ir as ir

from edgelm.config import ModelConfig
from edgelm_export.files.reader import read_graph
from edgelm_export.progress import Report, quiet
from edgelm_export.quantization.activation_stats import ActivationStats
from edgelm_export.quantization.int8_kv_cache import Ranges, cache_ranges
from edgelm_export.quantization.precision import FP32
from edgelm_export.quantization.quality import Answers, answers
from edgelm_export.quantization.rounding import Rounding
from edgelm_export.quantization.texts import EvaluationText, calibration_windows, evaluation_text
from edgelm_runtime.arrays import Ids
from edgelm_runtime.engine.recompute_decoder import RecomputeDecoder
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import OptionError
from edgelm_runtime.model_file.interface import CACHE_LENGTH, PREFIX
from edgelm_runtime.model_file.metadata import ModelFile, read_model_file


class Reference:
    """The float32 file `path`, of which only the metadata are read at once. The rest is found when it is asked for,
    once: what it answers to the evaluation text, and from the calibration text what rounding is fitted to.

    What has to be written meanwhile goes into folders next to `output`. Without `fit` nothing is fitted. Raises
    OptionError where the file is not float32.
    """

    def __init__(
        self, path: Path, text: Path | None, output: Path, fit: bool = True, report: Report = quiet
    ) -> None:
        self._path, self._text, self.fit = path, text, fit
        with self._session() as session:
            self.file: ModelFile = read_model_file(session, str(path))
            self.entries = {
                key.removeprefix(PREFIX): json.loads(value)
                for key, value in session.metadata.items()
                if key.startswith(PREFIX)
            }
            self.cached = CACHE_LENGTH in session.inputs
        dtype = self.file.dtype
        if dtype != FP32:
            raise OptionError(f"{path} is {dtype} already", "quantise the fp32 file")
        self.stats = ActivationStats(self.graph, lambda: self._calibration, output, report)
        self.rounding = Rounding(self.stats, fit, report)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        session = Session(self._path, "cpu")
        try:
            yield session
        finally:
            session.close()

    def decoder(self, session: Session) -> RecomputeDecoder:
        """A decoder over a graph of the same interface."""
        return RecomputeDecoder(session, self.file.context_length, self.file.vocab_size)

    def graph(self) -> ir.Model:
        """The graph, read anew."""
        return read_graph(self._path)

    @functools.cached_property
    def evaluation(self) -> EvaluationText:
        """The text that quality is measured on."""
        with self._session() as session:
            return evaluation_text(self.file, self.decoder(session), self._text)

    @functools.cached_property
    def answers(self) -> Answers:
        """What the file answers to the evaluation text."""
        with self._session() as session:
            return answers(self.decoder(session), self.evaluation)

    @functools.cached_property
    def cache_ranges(self) -> Ranges:
        """How large keys and values become."""
        config = ModelConfig.from_dict(self.file.config)
        rotary_dim = config.rotary_dim if config.position == "rotary" else 0
        windows = self._calibration
        with self._session() as session:
            return cache_ranges(session, windows, rotary_dim)

    @functools.cached_property
    def _calibration(self) -> list[Ids]:
        with self._session() as session:
            return calibration_windows(self.file, self.decoder(session), self._text)
