"""The float32 file that others are made from: its graph, its answers, and what rounding is fitted to."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgelm.config import ModelConfig
from edgelm_export.files.reader import open_session, read_graph
from edgelm_export.files.segments import Arrays, Segments
from edgelm_export.progress import Progress, Report, quiet
from edgelm_export.quantization.activation_stats import ActivationStats
from edgelm_export.quantization.precision import FP32
from edgelm_export.quantization.quality import Answers, answers
from edgelm_export.quantization.rounding import Rounding
from edgelm_export.quantization.texts import EvaluationText, calibration_windows, evaluation_text
from edgelm_runtime.arrays import Ids
from edgelm_runtime.engine.graph_inputs import empty_cache
from edgelm_runtime.engine.recompute_decoder import RecomputeDecoder
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import OptionError
from edgelm_runtime.model_file.interface import CACHE_LENGTH, INPUT_IDS, LOGITS, LOGITS_AT, PREFIX
from edgelm_runtime.model_file.metadata import ModelFile, read_model_file


class Reference:
    """The float32 file `path`, of which only the metadata are read at once. The rest is found when it is asked for,
    once: what it answers to the evaluation text, and from the calibration text what rounding is fitted to.

    Without `fit` nothing is fitted. Raises OptionError where the file is not float32.
    """

    def __init__(self, path: Path, text: Path | None, fit: bool = True, report: Report = quiet) -> None:
        self._path, self._text, self.fit, self._report = path, text, fit, report
        with self._session() as session:
            self.file: ModelFile = read_model_file(session, str(path))
            self.entries = {
                key.removeprefix(PREFIX): json.loads(value)
                for key, value in session.metadata.items()
                if key.startswith(PREFIX)
            }
            self.cached = CACHE_LENGTH in session.inputs
            self._inputs = session.inputs
        dtype = self.file.dtype
        if dtype != FP32:
            raise OptionError(f"{path} is {dtype} already", "quantise the fp32 file")
        config = ModelConfig.from_dict(self.file.config)
        rotary_dim = config.rotary_dim if config.position == "rotary" else 0
        self.stats = ActivationStats(path, self._calibration_feeds, rotary_dim, report)
        self.rounding = Rounding(self.stats, fit, report)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        session = open_session(self._path)
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
        segments = Segments(self._path)
        windows = self.evaluation.windows
        texts = [self._feeds(window[:-1]) for window in windows]
        progress = Progress(self._report, "fp32 on the evaluation text", len(segments) * len(windows))
        for index in range(len(segments) - 1):
            for _ in segments.run(index, texts, ()):
                progress.step()
        logits = segments.run(len(segments) - 1, texts, [LOGITS])
        return answers((arrays[LOGITS][0] for arrays in logits), self.evaluation)

    def _feeds(self, ids: Ids) -> Arrays:
        """What asks the graph for the logits at each of `ids`."""
        at = np.arange(len(ids))
        return {INPUT_IDS: ids[None], LOGITS_AT: at[None], **empty_cache(self._inputs, 1, len(ids))}

    def _calibration_feeds(self) -> list[Arrays]:
        return [self._feeds(window) for window in self._calibration]

    @functools.cached_property
    def _calibration(self) -> list[Ids]:
        with self._session() as session:
            return calibration_windows(self.file, self.decoder(session), self._text)
