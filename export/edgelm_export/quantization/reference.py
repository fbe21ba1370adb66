"""The float32 file that others are made from: its graph, what it answers to a text, what its products are fed."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import onnx_ir as ir

from edgelm.config import ModelConfig
from edgelm_export.passes.builder import products
from edgelm_export.quantization.activation_stats import FedText, Moments, input_sizes
from edgelm_export.quantization.block_layout import Blocks, Floats
from edgelm_export.quantization.gptq import gptq_blocks
from edgelm_export.quantization.int8_kv_cache import Ranges, cache_ranges
from edgelm_export.quantization.quality import Answers, Calibration, calibration, fitting_windows
from edgelm_runtime.engine.recompute_decoder import RecomputeDecoder
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import OptionError
from edgelm_runtime.model_file.interface import CACHE_LENGTH, PREFIX
from edgelm_runtime.model_file.metadata import ModelFile, read_model_file


class Source:
    """The float32 file `path`: its graph, its metadata, what it answers to the calibration text, and (for an
    `int8_cache`) what it keeps of it.

    What rounding is fitted on comes from another text (`quality.fitting_windows`), and is gathered when first
    asked for, in folders beside `output`.
    """

    def __init__(self, path: Path, text: Path | None, int8_cache: bool, output: Path) -> None:
        session = Session(path, "cpu")
        try:
            self.file: ModelFile = read_model_file(session, str(path))
            dtype = self.file.dtype
            if dtype != "fp32":
                raise OptionError(f"{path} is {dtype} already", "quantise the fp32 file")
            self.entries = {
                key.removeprefix(PREFIX): json.loads(value)
                for key, value in session.metadata.items()
                if key.startswith(PREFIX)
            }
            self.cached = CACHE_LENGTH in session.inputs
            decoder = self.decoder(session)
            self.calibration: Calibration = calibration(self.file, decoder, text)
            self.answers: Answers = self.calibration.answers(decoder)
            self.ranges: Ranges | None = None
            if self.cached and int8_cache:
                self.ranges = cache_ranges(session, self.calibration, self._rotary_dim())
        finally:
            session.close()
        self._path, self._text, self._output = path, text, output
        self._blocks: dict[tuple[str, int], Blocks] = {}

    def decoder(self, session: Session) -> RecomputeDecoder:
        """A decoder over a graph of the same interface."""
        return RecomputeDecoder(session, self.file.context_length, self.file.vocab_size)

    def _rotary_dim(self) -> int:
        config = ModelConfig.from_dict(self.file.config)
        return config.rotary_dim if config.position == "rotary" else 0

    def graph(self) -> ir.Model:
        """The graph, read anew, without metadata."""
        graph = ir.load(self._path)
        graph.metadata_props.clear()
        return graph

    @functools.cached_property
    def input_sizes(self) -> dict[str, Floats]:
        """Root mean square (in,) of what each matrix is multiplied by, by its name."""
        return input_sizes(self._fed_text)

    def gptq_blocks(self, name: str, matrix: Floats, block_size: int) -> Blocks:
        """The 4-bit blocks of `matrix` (out, in), which is called `name`: made once, for plans that share them."""
        key = name, block_size
        if key not in self._blocks:
            self._blocks[key] = gptq_blocks(matrix, self._moments[name], block_size, name)
        return self._blocks[key]

    @functools.cached_property
    def _moments(self) -> Moments:
        """Second moments (in, in) of what each matrix is multiplied by."""
        widths = {product.name: product.matrix().shape[1] for product in products(self.graph().graph)}
        return Moments(self._fed_text, widths)

    @functools.cached_property
    def _fed_text(self) -> FedText:
        session = Session(self._path, "cpu")
        try:
            windows = fitting_windows(self.file, self.decoder(session), self._text)
        finally:
            session.close()
        return FedText(self.graph, windows, self._output)
