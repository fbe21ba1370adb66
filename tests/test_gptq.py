"""GPTQ: rounding that fits the inputs, and the statistics of inputs that it is fitted on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgelm.checkpoint import Checkpoint
from edgelm_export import export_checkpoint, quantize
from edgelm_export.files import segments
from edgelm_export.progress import Progress
from edgelm_export.quantization.activation_stats import ActivationStats
from edgelm_export.quantization.block_layout import blocks_of_4_bits
from edgelm_export.quantization.gptq import gptq_blocks
from edgelm_export.quantization.texts import LARGEST_TEXT, calibration_windows, evaluation_text
from edgelm_runtime.engine.graph_inputs import empty_cache
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import ExportError, OptionError
from edgelm_runtime.model_file.interface import INPUT_IDS, LOGITS_AT
from edgelm_runtime.model_file.metadata import read_model_file
from edgelm_runtime.reports.verify import verify
from tests.small_models import small_checkpoint, small_model

RANDOM = np.random.default_rng(0)
MATRIX = RANDOM.standard_normal((24, 88)).astype(np.float32)
# 88 features that follow from 20, of unequal sizes: what activations look like.
MIXING = RANDOM.standard_normal((20, 88)) * np.exp(RANDOM.standard_normal(88))


def inputs(rows: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, 20)) @ MIXING + 0.1 * random.standard_normal((rows, 88))).astype(
        np.float32
    )


@pytest.mark.parametrize("size", [16, 32, 64])
def test_outputs_are_nearer_than_with_rounding_to_the_nearest(size: int) -> None:
    """On other inputs of the same kind; 88 inputs do not fill the last block of 64."""
    seen, unseen = inputs(500, 1), inputs(500, 2)
    fitted = gptq_blocks(MATRIX, seen.T @ seen / 500, size, "m")
    nearest = blocks_of_4_bits(MATRIX, size)
    assert (fitted.packed.shape, fitted.scales.shape) == (nearest.packed.shape, nearest.scales.shape)
    errors = [np.square(unseen @ (blocks.matrix() - MATRIX).T).mean() for blocks in (fitted, nearest)]
    assert errors[0] < 0.15 * errors[1]
    assert np.square(fitted.matrix() - MATRIX).mean() > np.square(nearest.matrix() - MATRIX).mean()


def test_inputs_that_say_nothing_leave_rounding_to_the_nearest() -> None:
    for moments_ in (np.zeros((88, 88), np.float32), np.eye(88, dtype=np.float32)):
        fitted, nearest = gptq_blocks(MATRIX, moments_, 32, "m"), blocks_of_4_bits(MATRIX, 32)
        np.testing.assert_array_equal(fitted.packed, nearest.packed)
        np.testing.assert_array_equal(fitted.scales, nearest.scales)
        np.testing.assert_array_equal(fitted.zero_points, nearest.zero_points)


def test_moments_without_a_factorisation_are_an_error_with_a_name() -> None:
    one = inputs(1, 3)
    assert np.isfinite(gptq_blocks(MATRIX, one.T @ one, 32, "m").matrix()).all()  # rank 1: damped
    bad = np.eye(88, dtype=np.float32)
    bad[0, 1] = bad[1, 0] = 1e6
    with pytest.raises(ExportError, match=r"inputs of blocks\.0\.mlp\.down\.weight cannot be factorised"):
        gptq_blocks(MATRIX, bad, 32, "blocks.0.mlp.down.weight")
    bad[0, 1] = np.nan
    with pytest.raises(ExportError, match=r"inputs of head\.weight are not finite"):
        gptq_blocks(MATRIX, bad, 32, "head.weight")


@pytest.mark.parametrize("options", [{}, {"kv_cache": True, "opset": 18}])
def test_moments_are_those_of_what_pytorch_feeds(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = small_model("grouped heads"), tmp_path / "m.onnx"
    export_checkpoint(Checkpoint(model, None), path, **options)
    fed: dict[str, list[torch.Tensor]] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            rows = fed.setdefault(f"{name}.weight", [])
            module.register_forward_pre_hook(lambda _, given, rows=rows: rows.append(given[0].flatten(0, 1)))
    windows = [np.random.default_rng(seed).integers(0, 61, 20 - seed) for seed in range(3)]
    with torch.no_grad():
        for window in windows:
            model(torch.from_numpy(window)[None])
    monkeypatch.setattr(segments, "BYTES", 1)  # a layer at a time
    with closing(Session(path, "cpu")) as session:
        inputs = session.inputs

    def feeds() -> list[dict[str, Any]]:
        return [
            {INPUT_IDS: ids[None], LOGITS_AT: np.arange(len(ids))[None], **empty_cache(inputs, 1, len(ids))}
            for ids in windows
        ]

    stats = ActivationStats(path, feeds)
    sizes = stats.input_sizes
    fed = {name: rows for name, rows in fed.items() if rows}
    assert len(fed) >= 8 and set(fed) <= set(sizes)
    for name in [*fed, next(iter(fed))]:
        rows = torch.cat(fed[name]).double().numpy()
        expected = rows.T @ rows / len(rows)
        np.testing.assert_allclose(stats.moments(name), expected, rtol=1e-3, atol=1e-4 * expected.max())
        np.testing.assert_allclose(sizes[name], np.sqrt(expected.diagonal()), rtol=1e-3)
    assert sorted(tmp_path.iterdir()) == [path]


def test_rounding_is_fitted_on_other_text_than_is_measured(tmp_path: Path) -> None:
    path, text = tmp_path / "m.onnx", tmp_path / "text.txt"
    export_checkpoint(small_checkpoint(), path)
    text.write_text("abc " * (LARGEST_TEXT // 4) + "what is left of the text")
    session = Session(path, "cpu", threads=1)
    file = read_model_file(session, str(path))
    assert file.tokenizer is not None
    decoder: Any = None
    measured = np.concatenate(list(evaluation_text(file, decoder, text).windows))
    fitted = np.concatenate(calibration_windows(file, decoder, text))
    assert file.tokenizer.decode(measured.tolist()) == "abc " * (LARGEST_TEXT // 4)
    assert file.tokenizer.decode(fitted.tolist()).startswith("what is left of the text")
    assert len(fitted) == LARGEST_TEXT
    own, other = evaluation_text(file, decoder).windows, calibration_windows(file, decoder)
    assert not {tuple(window) for window in own} & {tuple(window) for window in other}


@pytest.mark.parametrize(("name", "options"), [("grouped heads", {}), ("seed", {"opset": 18})])
def test_a_model_in_4_bits_keeps_more_of_its_choices(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Than with rounding to the nearest; with grouped heads, biases, and heads tied and not."""
    exact = tmp_path / "exact.onnx"
    export_checkpoint(small_checkpoint(name, width=64), exact, kv_cache=True, **options)
    fitted = quantize(exact, tmp_path / "fitted.onnx", "int4", max_ppl_increase=1e3, min_agreement=0)
    monkeypatch.setattr(
        "edgelm_export.quantization.rounding.gptq_blocks",
        lambda matrix, _, size, name: blocks_of_4_bits(matrix, size),
    )
    nearest = quantize(exact, tmp_path / "nearest.onnx", "int4", max_ppl_increase=1e3, min_agreement=0)
    assert fitted.top1_agreement > nearest.top1_agreement + 0.05
    assert sorted(file.name for file in tmp_path.iterdir()) == ["exact.onnx", "fitted.onnx", "nearest.onnx"]


def test_a_model_without_a_tokenizer_is_fitted_on_what_it_writes(tmp_path: Path) -> None:
    report: list[str] = []
    model, path = small_model("soft caps"), tmp_path / "m.onnx"
    options = {"dtype": "int4", "max_ppl_increase": 100, "min_agreement": 0, "report": report.append}
    export_checkpoint(Checkpoint(model, None), path, kv_cache=True, **options)
    assert any("drawn from the model" in line for line in report)
    assert verify(path, "cpu", 1).prompts == 1


def test_a_search_rounds_each_matrix_once_for_each_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, rounded, report = tmp_path / "exact.onnx", [], []
    export_checkpoint(Checkpoint(small_model(), None), exact, kv_cache=True)

    def counted(matrix: np.ndarray, moments: np.ndarray, size: int, name: str) -> Any:
        rounded.append((name, size))
        return gptq_blocks(matrix, moments, size, name)

    monkeypatch.setattr("edgelm_export.quantization.rounding.gptq_blocks", counted)
    with pytest.raises(ExportError, match="at best"):
        quantize(exact, tmp_path / "m.onnx", "int4", max_ppl_increase=-90, report=report.append)
    # The finer size, then each kind by itself and the most rewarding together.
    assert [line.split(", head")[0] for line in report[:2]] == [
        "int4 in blocks of 32",
        "int4 in blocks of 16",
    ]
    assert sum("mlp.down" in line for line in report) > 1 and len(report) == 8
    assert len(rounded) == len(set(rounded)) == 16
    assert list(tmp_path.iterdir()) == [exact]


def test_without_fitting_a_large_model_takes_less_time_and_loses_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No statistics are gathered; matrices go to the nearest level, in rows of int8 without smoothing."""
    exact = tmp_path / "exact.onnx"
    export_checkpoint(small_checkpoint(width=64), exact)
    monkeypatch.setattr(ActivationStats, "_step", None)
    for options in ({"dtype": "int4"}, {"dtype": "int8"}):
        quantize(exact, tmp_path / "rough.onnx", **options, fit=False, max_ppl_increase=1e3, min_agreement=0)
    with pytest.raises(OptionError, match="fit has no meaning for fp16"):
        quantize(exact, tmp_path / "half.onnx", "fp16", fit=False)


def test_progress_tells_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    clock = iter([0.0, 1.0, 6.0, 7.0, 300.0, 400.0])
    monkeypatch.setattr("edgelm_export.progress.time.monotonic", lambda: next(clock))
    progress = Progress(lines.append, "rounding", 5)
    for _ in range(5):
        progress.step()
    assert lines == ["rounding: 2 of 5, about 9 s left", "rounding: 4 of 5, about 75 s left"]
