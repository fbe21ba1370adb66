"""Smoothing: outliers of activations go into the weights, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from edgelm.checkpoint import Checkpoint
from edgelm_export import export_checkpoint, quantize
from edgelm_export.files.writer import write_graph
from edgelm_export.passes.builder import products
from edgelm_export.quantization.rowwise_int8 import RowwiseInt8
from edgelm_export.quantization.smoothing import Smoothed, factors
from edgelm_runtime.engine.graph_inputs import empty_cache
from edgelm_runtime.engine.session import Session
from tests.small_models import small_checkpoint, small_model

IDS = np.random.default_rng(0).integers(0, 61, (1, 20))
GATED = {"attention.qkv", "mlp.up", "mlp.down", "head"}


def answers(path: Path) -> np.ndarray:
    session = Session(path, "cpu", threads=1)
    feeds = {"input_ids": IDS, "logits_at": np.arange(IDS.shape[1])[None]}
    return session.run(["logits"], {**feeds, **empty_cache(session.inputs, *IDS.shape)})[0]


def matrices(graph: ir.Model) -> dict[str, np.ndarray]:
    return {product.name: product.matrix().copy() for product in products(graph.graph)}


@pytest.mark.parametrize(
    ("name", "options", "smoothed"),
    [
        ("grouped heads", {}, GATED),
        ("grouped heads", {"kv_cache": True}, GATED),
        ("grouped heads", {"opset": 18}, GATED),  # norms spelled out
        ("grouped heads", {"outputs": ("hidden",)}, GATED - {"head"}),  # somebody sees what feeds the head
        ("seed", {"opset": 18, "kv_cache": True}, GATED),  # ReLU with biases; an untied head
        ("gpt2", {"kv_cache": True}, GATED - {"mlp.down"}),  # GELU has no factor to pass on
    ],
)
def test_logits_stay(name: str, options: dict[str, Any], smoothed: set[str], tmp_path: Path) -> None:
    exact, changed = tmp_path / "exact.onnx", tmp_path / "changed.onnx"
    export_checkpoint(Checkpoint(small_model(name), None), exact, **options)
    graph = ir.load(exact)
    before = matrices(graph)
    random = np.random.default_rng(1)
    sizes = {key: np.exp(2 * random.standard_normal(value.shape[1])) for key, value in before.items()}
    Smoothed({key: value.astype(np.float32) for key, value in sizes.items()})(graph)
    # Columns of a smoothed matrix are multiplied, each by its own number; rows of `up` may be as well.
    for key, now in matrices(graph).items():
        ratio = now / before[key]
        evened = np.abs(np.log(ratio / ratio[:, :1])).max() > 0.5
        assert evened == any(part in key for part in smoothed), key
    write_graph(graph, changed)
    expected = answers(exact)
    assert np.abs(answers(changed) - expected).max() < 1e-5 * np.abs(expected).max()


def with_outliers() -> Checkpoint:
    """A checkpoint with one feature in front of each matrix a hundred times as large, and weights to match."""
    checkpoint = small_checkpoint("grouped heads", width=64, mlp_width=96)
    with torch.no_grad():
        for block in checkpoint.model.blocks:
            for norm, matrix in (
                (block.attention_norm, block.attention.qkv), (block.mlp_norm, block.mlp.up),
            ):  # fmt: skip
                norm.weight[5] *= 100
                matrix.weight[:, 5] /= 100
            block.mlp.up.weight[96 + 7] *= 100
            block.mlp.down.weight[:, 7] /= 100
    return checkpoint


def test_outliers_cost_int8_nothing(tmp_path: Path) -> None:
    exact, rough, fine = (tmp_path / f"{name}.onnx" for name in ("exact", "rough", "fine"))
    export_checkpoint(with_outliers(), exact)
    graph = ir.load(exact)
    RowwiseInt8()(graph)
    write_graph(graph, rough)
    quality = quantize(exact, fine, "int8")
    expected = answers(exact)
    errors = [np.abs(answers(path) - expected).mean() for path in (rough, fine)]
    assert errors[1] < 0.1 * errors[0]
    assert quality.top1_agreement > 0.9


def test_factors_even_out_features_and_weights() -> None:
    """The product of both lengths is least; unseen features and empty columns stay within bounds."""
    matrix = np.array([[4.0, 1.0, 0.0, 1.0]], np.float32)
    found = factors(np.array([1.0, 9.0, 1.0, 0.0], np.float32), matrix)
    np.testing.assert_allclose(found / found[0], [1, 6, np.sqrt(40), np.sqrt(0.4)], rtol=1e-5)
    assert np.prod(found) == pytest.approx(1)
    np.testing.assert_allclose(factors(np.zeros(4, np.float32), 0 * matrix), 1)
