"""Every architecture gives the same text from PyTorch and from the exported file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from edgelm.checkpoint import Checkpoint
from edgelm.model import generate
from edgelm_export import export_checkpoint
from edgelm_export.tracing import attention as operators
from edgelm_runtime import RecomputeDecoder, generate_ids
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import ExportError
from tests.small_models import ARCHITECTURES, small_model

pytestmark = pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")
# Beside opset 23: opset 18, without the fused operators, and a graph with a cache, run without it here. The
# export itself feeds the cache in pieces.
LOW_OPSET = {"windows", "parallel"}
CACHED = {"gpt2", "one token of context", "grouped heads", "one shared key head", "windows", "soft caps"}
CACHED_ON_CUDA = {"gpt2", "one token of context", "one shared key head", "windows", "soft caps", "parallel"}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_same_text_from_pytorch_and_onnxruntime(name: str, tmp_path: Path) -> None:
    model = small_model(name)
    context = model.config.context_length
    variants = [(23, False, "cpu")] + [(18, False, "cpu")] * (name in LOW_OPSET)
    variants += [(23, True, "cpu")] * (name in CACHED) + [(24, True, "cuda")] * (name in CACHED_ON_CUDA)
    for opset, kv_cache, target in variants:
        path = tmp_path / "model.onnx"
        report = export_checkpoint(
            Checkpoint(model, None), path, opset=opset, kv_cache=kv_cache, target=target
        )
        assert report.max_abs_error < 1e-5
        assert report.longest == context
        session = Session(path, "cpu", threads=1)
        decoder = RecomputeDecoder(session, context, model.config.vocab_size)
        for options in ({"temperature": 0}, {"temperature": 1.0, "top_p": 0.9, "seed": 5}):
            ours = generate_ids(decoder, [3, 1, 4], max_new_tokens=context + 6, **options)
            assert ours == generate(model, [3, 1, 4], max_new_tokens=context + 6, **options)
        if opset == 18:
            assert "Attention" not in session.metadata["edgelm.graph"]


def test_positions_of_logits(tmp_path: Path) -> None:
    """Negative positions, one row of positions for a whole batch, and the default: the last position."""
    model = small_model().eval()
    export_checkpoint(Checkpoint(model, None), tmp_path / "m.onnx")
    session = Session(tmp_path / "m.onnx", "cpu", threads=1)
    ids = np.random.default_rng(2).integers(0, 61, (3, 7))
    with torch.no_grad():
        every = model(torch.from_numpy(ids))[0].numpy()
    cases = {
        "default": ({}, every[:, -1:]),
        "shared": ({"logits_at": np.array([[0, -2, 6, 0]])}, every[:, [0, 5, 6, 0]]),
        "each": ({"logits_at": np.array([[1], [-7], [6]])}, every[[0, 1, 2], [1, 0, 6]][:, None]),
        "none": ({"logits_at": np.zeros((1, 0), np.int64)}, every[:, :0]),
    }
    for name, (feed, expected) in cases.items():
        (found,) = session.run(["logits"], {"input_ids": ids, **feed})
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)


def test_a_graph_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("what was there before")
    checkpoint = Checkpoint(small_model("grouped heads"), None)
    with pytest.raises(ExportError, match="differs from PyTorch by"):
        export_checkpoint(checkpoint, path, atol=1e-12)
    one_node = operators.one_node

    def unscaled(
        name: str, inputs: list[torch.Tensor], attributes: dict[str, float], like: torch.Tensor
    ) -> torch.Tensor:
        return one_node(name, inputs, {key: v for key, v in attributes.items() if key != "is_causal"}, like)

    monkeypatch.setattr(operators, "one_node", unscaled)
    with pytest.raises(ExportError, match="differs from PyTorch by"):
        export_checkpoint(checkpoint, path)
    assert path.read_text() == "what was there before"
    assert list(tmp_path.iterdir()) == [path]


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    model = small_model()
    with torch.no_grad():
        model.blocks[1].mlp.up.weight[0, 0] = float("nan")
    with pytest.raises(ExportError, match="PyTorch's own logits are not finite"):
        export_checkpoint(Checkpoint(model, None), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
