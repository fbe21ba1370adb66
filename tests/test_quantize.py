"""Smaller files: what they weigh, what they lose, and that a token never depends on its neighbours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgelm
from edgelm.checkpoint import Checkpoint
from edgelm_export import compare_with_checkpoint, export_checkpoint, quantize
from edgelm_export.files import writer
from edgelm_export.quantization.block_layout import Blocks, blocks_of_8_bits, pack, unpack
from edgelm_export.quantization.detect_q4 import blocks_on_grid
from edgelm_export.quantization.gptq import gptq_blocks
from edgelm_export.quantization.precision import Quantization, QuantizeOptions
from edgelm_export.quantization.reference import Reference
from edgelm_export.quantization.rowwise_int8 import quantize_rows
from edgelm_export.quantization.texts import evaluation_text
from edgelm_runtime.engine.cached_decoder import CachedDecoder
from edgelm_runtime.engine.recompute_decoder import RecomputeDecoder
from edgelm_runtime.engine.session import Session
from edgelm_runtime.errors import ExportError, OptionError, VerificationError
from edgelm_runtime.model_file.interface import INPUT_IDS
from edgelm_runtime.model_file.metadata import read_model_file
from edgelm_runtime.reports.verify import verify
from tests.small_models import character_tokenizer, small_checkpoint, small_model

pytestmark = pytest.mark.filterwarnings("ignore::edgelm_runtime.ContextWarning")


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exact") / "model.onnx"
    export_checkpoint(small_checkpoint(width=64, head_bias=True), path)
    return path


def logits(path: Path, ids: list[list[int]]) -> np.ndarray:
    session = Session(path, "cpu", threads=1)
    return session.run(["logits"], {"input_ids": np.array(ids), "logits_at": np.arange(len(ids[0]))[None]})[0]


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
def test_smaller_files_lose_little_and_prove_themselves(dtype: str, exact: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    quality = quantize(exact, path, dtype, max_ppl_increase=2, min_agreement=90)
    onnx.checker.check_model(str(path), full_check=True)
    assert path.stat().st_size < exact.stat().st_size - 170_000  # of 117,000 parameters
    assert quality.tokens > 2000 and quality.top1_agreement > 0.9
    stored = json.loads(Session(path, "cpu").metadata["edgelm.quality"])
    assert stored["ppl_increase_pct"] == quality.ppl_increase_pct <= stored["allowed_pct"] == 2
    assert verify(path, "cpu", 1).prompts == 6
    compare_with_checkpoint(path, small_checkpoint(width=64, head_bias=True))
    other = small_checkpoint(width=64, head_bias=True)
    other.model.blocks[0].mlp.up.weight.data.neg_()
    with pytest.raises(VerificationError, match="is not this checkpoint"):
        compare_with_checkpoint(path, other)


def test_a_row_of_int8_does_not_depend_on_its_neighbours(exact: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    quantize(exact, path, "int8", max_ppl_increase=5)
    rows = np.random.default_rng(0).integers(0, 260, (3, 9))
    together = logits(path, rows.tolist())
    for row, expected in zip(rows, together, strict=True):
        np.testing.assert_array_equal(logits(path, [row.tolist()])[0], expected)
        np.testing.assert_array_equal(logits(path, [row[:4].tolist()])[0], expected[:4])
    with edgelm.load(path, threads=1) as lm:
        assert (
            lm.generate("in the", max_new_tokens=30, lookup=4).text
            == lm.generate("in the", max_new_tokens=30, lookup=0).text
        )


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cached") / "model.onnx"
    export_checkpoint(
        on_a_grid(small_checkpoint("grouped heads", width=64, mlp_width=96)), path, kv_cache=True
    )
    return path


def on_a_grid(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with its matrices rounded to 16 levels in each 32 inputs, as GGUF's Q4_1 does."""
    for name, weight in checkpoint.model.named_parameters():
        if "blocks" in name and weight.dim() == 2:
            blocks = weight.data.reshape(len(weight), -1, 32)
            low, high = blocks.amin(-1, keepdim=True).half().float(), blocks.amax(-1, keepdim=True)
            step = ((high - low) / 15).half().float()
            weight.data = (((blocks - low) / step).round().clamp(0, 15) * step + low).view_as(weight)
    return checkpoint


@pytest.mark.parametrize(
    ("dtype", "plan"), [("int8", "int8 in blocks of 32"), ("int4", "int4 in blocks of 32, head at 8 bits")]
)
def test_blocks_for_a_cache(dtype: str, plan: str, cached: Path, tmp_path: Path) -> None:
    """Weights on a 4-bit grid lose nothing but the rounding of activations, in 4 bits as in 8."""
    path = tmp_path / "small.onnx"
    quality = quantize(cached, path, dtype, max_ppl_increase=1)
    assert abs(quality.ppl_increase_pct) < 1 and quality.top1_agreement > 0.9
    session = Session(path, "cpu", threads=1)
    assert json.loads(session.metadata["edgelm.quality"])["plan"] == plan
    operators = json.loads(session.metadata["edgelm.graph"])["operators"]
    assert operators["com.microsoft.MatMulNBits"] == 9 and "MatMul" not in operators
    assert operators.get("ReduceMean", 0) == (8 if dtype == "int4" else 0)
    assert path.stat().st_size < cached.stat().st_size * (0.55 if dtype == "int8" else 0.45)
    assert verify(path, "cpu", 1).prompts == 6


@pytest.mark.parametrize("cache_dtype", ["int8", "fp32"])
@pytest.mark.parametrize(("dtype", "kernel"), [("int8", "rows"), ("int8", "blocks"), ("int4", "blocks")])
def test_a_step_is_the_same_arithmetic_as_a_pass(
    dtype: str, kernel: str, cache_dtype: str, cached: Path, tmp_path: Path
) -> None:
    """Rounded activations forgive nothing: with a cache and without, logits agree to the last bit."""
    small = tmp_path / "small.onnx"
    quantize(cached, small, dtype, kernel=kernel, cache_dtype=cache_dtype, max_ppl_increase=2)
    session = Session(small, "cpu", threads=1)
    assert ("int8" in session.inputs["past_key_values.0.key"].type) == (cache_dtype == "int8")
    operator = "MatMulInteger" if kernel == "rows" else "MatMulNBits"
    assert operator in session.metadata["edgelm.graph"]
    whole, stepwise = RecomputeDecoder(session, 24, 260), CachedDecoder(session, 24, 260)
    rows = [np.random.default_rng(seed).integers(0, 260, 24) for seed in range(3)]
    for end in (5, 6, 7, 8, 13, 14, 24):
        windows = [rows[0][:end], rows[1][: end - 2], rows[2][: max(2, end - 5)]]
        for ours, expected in zip(stepwise(windows, [1, 1, 1]), whole(windows, [1, 1, 1]), strict=True):
            np.testing.assert_array_equal(ours, expected)
    (ours,), (expected,) = stepwise([rows[0]], [4]), whole([rows[0]], [4])
    np.testing.assert_array_equal(ours, expected)


RANDOM = np.random.default_rng(5).standard_normal((12, 96)).astype(np.float32)
LEVELS = np.random.default_rng(6).integers(0, 16, (12, 96)).astype(np.float32)
STEPS = np.float16(np.random.default_rng(7).uniform(0.01, 0.1, (12, 3))).astype(np.float32).repeat(32, axis=1)


@pytest.mark.parametrize(
    ("bits", "size", "error"), [(8, 32, 0.006), (8, 16, 0.005), (4, 32, 0.05), (4, 128, 0.06)]
)
def test_blocks_stand_for_their_matrix(bits: int, size: int, error: float) -> None:
    blocks = _rounded(RANDOM, bits, size)
    assert blocks.packed.shape == (12, -(-96 // size), size * bits // 8)
    assert 0 < np.abs(blocks.matrix() - RANDOM).std() < error
    assert _rounded(np.zeros((2, 8), np.float32), bits, size).matrix().tolist() == [[0] * 8] * 2


def _rounded(matrix: np.ndarray, bits: int, size: int) -> Blocks:
    if bits == 8:
        return blocks_of_8_bits(matrix, size)
    return gptq_blocks(matrix, np.eye(matrix.shape[1], dtype=np.float32), size, "m")


def test_halves_of_bytes() -> None:
    values = np.array([[1, 15, 7], [0, 2, 9]], np.uint8)
    assert pack(values).tolist() == [[0xF1, 0x07], [0x20, 0x09]]
    assert unpack(pack(values))[:, :3].tolist() == values.tolist()


@pytest.mark.parametrize(
    ("matrix", "columns"),
    [
        (STEPS * (LEVELS - 8), 96),
        (STEPS * (LEVELS - 4.7), 99),
        (np.where(LEVELS > 7, STEPS, -STEPS), 99),
        (RANDOM, None),
        (STEPS * LEVELS + 1e-2 * RANDOM, None),
        (RANDOM[:, :40], None),
    ],
    ids=["Q4_0", "Q4_1", "two levels", "no grid", "a disturbed grid", "no whole blocks"],
)
def test_grids_are_recognised(matrix: np.ndarray, columns: int | None) -> None:
    found = blocks_on_grid(matrix)
    assert (found.columns if found else None) == columns
    if found:
        values = found.matrix()
        rest = values[:, 96:].repeat(32, axis=1) / 32 if columns == 99 else 0
        # The rest of up to half a step is itself stored in 4 bits.
        assert np.abs(values[:, :96] + rest - matrix).max() < (1e-6 if columns == 96 else 0.04 * STEPS.max())


def test_rows_are_rounded_to_the_nearest_of_127_steps() -> None:
    matrix = np.array([[1.0, -0.5, 0.004], [0.0, 0.0, 0.0]], np.float32)
    quantized, scale = quantize_rows(matrix)
    assert quantized.tolist() == [[127, -64, 1], [0, 0, 0]]
    assert np.isfinite(quantized * scale[:, None]).all()


@pytest.mark.parametrize(
    ("name", "options"), [("windows", {}), ("seed", {"opset": 18}), ("seed", {"opset": 18, "kv_cache": True})]
)
def test_other_architectures(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Rotary windows, norms everywhere, grouped heads; an untied head and an old opset; no tokenizer."""
    report: list[str] = []
    model, path = small_model(name, width=32), tmp_path / "m.onnx"
    export_checkpoint(
        Checkpoint(model, None),
        path,
        dtype="int8",
        max_ppl_increase=20,
        min_agreement=0,
        report=report.append,
        **options,
    )
    assert any("drawn from the model" in line for line in report)
    assert verify(path, "cpu", 1).prompts == 1
    stored = {tensor.name for tensor in onnx.load(path).graph.initializer if len(tensor.dims) > 1}
    assert "blocks.0.mlp.up.weight.int8" in stored
    assert ("token_embedding.weight.int8" in stored) == (name == "seed")


def test_characters_of_one_book_are_enough(tmp_path: Path) -> None:
    """The texts that ship with edgelm cannot be encoded by these 65; prompts and texts are made of what can."""
    exact, small, text = tmp_path / "exact.onnx", tmp_path / "small.onnx", tmp_path / "text.txt"
    model, tokenizer = (
        small_model("grouped heads", width=64, vocab_size=65, context_length=48),
        character_tokenizer(),
    )
    assert tokenizer.vocab_size == 65
    export_checkpoint(Checkpoint(model, tokenizer), exact, kv_cache=True)
    assert verify(exact, "cpu", 1).prompts == 6
    with edgelm.load(exact, threads=1) as lm:
        prompts = lm.info.golden_prompts
    assert sum("text" in prompt for prompt in prompts) == 5
    assert all(tokenizer.encode(prompt["text"]) == prompt["ids"] for prompt in prompts[1:])
    for options in ({"dtype": "int8", "kernel": "rows"}, {"dtype": "int4"}):
        quality = quantize(exact, small, **options, max_ppl_increase=1000, min_agreement=0)
        assert quality.text == "text drawn from the model" and verify(small, "cpu", 1).prompts == 6
    compare_with_checkpoint(small, Checkpoint(model, tokenizer))
    text.write_text("To be, or not to be: that is the question. " * 20)
    assert (
        quantize(exact, small, "int4", text=text, max_ppl_increase=1000, min_agreement=0).text == "text.txt"
    )
    text.write_text("12 angry men")
    with pytest.raises(OptionError, match="nothing for '1'"):
        quantize(exact, small, "int4", text=text)


def test_other_choices_are_a_loss_too(cached: Path, tmp_path: Path) -> None:
    """Whatever the perplexity: matrices are kept at more bits until choices agree, or it fails."""
    tried: list[str] = []
    options: dict[str, Any] = {"max_ppl_increase": 1000, "report": tried.append}
    rough = quantize(cached, tmp_path / "rough.onnx", "int4", min_agreement=0, **options)
    assert len(tried) == 3 and rough.top1_agreement < 0.999
    with pytest.raises(ExportError, match=r"at best \(1000% allowed\), with .* agreement \(100% required\)"):
        quantize(cached, tmp_path / "never.onnx", "int4", min_agreement=100, **options)
    reached = float(tried[-1].split("agreement ")[1].split("%")[0])
    fine = quantize(cached, tmp_path / "fine.onnx", "int4", min_agreement=max(reached - 0.1, 0), **options)
    assert fine.top1_agreement >= rough.top1_agreement


def test_a_cache_is_scaled_on_other_text_than_is_measured(
    cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    feeds = Reference._calibration_feeds

    def spied(reference: Reference) -> list[dict[str, Any]]:
        texts = feeds(reference)
        seen.extend(text[INPUT_IDS][0] for text in texts)
        return texts

    monkeypatch.setattr(Reference, "_calibration_feeds", spied)
    quantize(cached, tmp_path / "small.onnx", "int8", max_ppl_increase=10)
    session = Session(cached, "cpu", threads=1)
    model = read_model_file(session, str(cached))
    measured = evaluation_text(model, RecomputeDecoder(session, 24, 260)).windows
    assert seen and not {tuple(window) for window in seen} & {tuple(window) for window in measured}


@pytest.mark.parametrize("stage", ["detect_q4._find_grid", "search.compare_answers", "search.golden_vectors"])
def test_an_interruption_leaves_nothing(
    stage: str, cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"edgelm_export.quantization.{stage}", interrupted)
    (tmp_path / "small.onnx").write_text("the one before")
    with pytest.raises(KeyboardInterrupt):
        quantize(cached, tmp_path / "small.onnx", "int4", max_ppl_increase=1e3, min_agreement=0)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["the one before"]


def test_a_large_file_is_the_same_when_its_weights_are_held_once(
    exact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another order of adding up is all that changes."""
    usual = quantize(exact, tmp_path / "usual.onnx", "fp16")
    monkeypatch.setattr("edgelm_export.files.reader.LARGE", 0)
    monkeypatch.setattr("edgelm_export.files.segments.BYTES", 1)
    large = quantize(exact, tmp_path / "large.onnx", "fp16")
    assert large.perplexity == pytest.approx(usual.perplexity, rel=1e-4)
    assert large.perplexity_fp32 == pytest.approx(usual.perplexity_fp32, rel=1e-4)


def test_a_report_that_fails_is_not_the_files_failure(exact: Path, tmp_path: Path) -> None:
    lines: list[str] = []

    def broken(line: str) -> None:
        lines.append(line)
        raise BrokenPipeError(32, "Broken pipe")

    export_checkpoint(small_checkpoint(), tmp_path / "m.onnx", report=broken)
    quantize(exact, tmp_path / "half.onnx", "fp16", report=broken)
    assert len(lines) == 2
    for path in (tmp_path / "m.onnx", tmp_path / "half.onnx"):
        verify(path, "cpu", 1)


@pytest.mark.parametrize("kind", ["hard links", "a hub cache"])
def test_files_under_other_names(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model and its sidecar with a second name each, or as links to files that are called otherwise."""
    monkeypatch.setattr(writer, "LARGEST_FILE", 10_000)
    plain, other = tmp_path / "plain" / "m.onnx", tmp_path / "other" / "m.onnx"
    export_checkpoint(small_checkpoint(), plain, kv_cache=True)
    other.parent.mkdir()
    for name, blob in (("m.onnx", "aaa"), ("m.onnx.data", "bbb")):
        if kind == "hard links":
            (other.parent / name).hardlink_to(plain.parent / name)
        else:
            (tmp_path / blob).write_bytes((plain.parent / name).read_bytes())
            (other.parent / name).symlink_to(Path("..", blob))
    for dtype in ("fp16", "int4"):
        options: dict[str, Any] = {"max_ppl_increase": 1000, "min_agreement": 0}
        for source in (plain, other):
            quantize(source, source.with_name("small.onnx"), dtype, **options)
        assert plain.with_name("small.onnx").read_bytes() == other.with_name("small.onnx").read_bytes()


def test_too_great_a_loss_keeps_matrices_and_then_fails(exact: Path, tmp_path: Path) -> None:
    tried: list[str] = []
    with pytest.raises(ExportError, match=r"raises the perplexity by .* at best"):
        quantize(exact, tmp_path / "small.onnx", "int8", max_ppl_increase=-50, report=tried.append)
    assert tried[0].startswith("int8: perplexity")
    assert sum(" at 16 bits" in line for line in tried) > 5 and " and " in tried[-1]
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_quantised_says_why(exact: Path, tmp_path: Path) -> None:
    large = small_checkpoint()
    large.model.blocks[1].mlp.up.weight.data[0, 0] = 1e5
    with pytest.raises(
        ExportError, match=r"blocks\.1\.mlp\.up\.weight holds 1e\+05, and float16 ends at 65504"
    ):
        export_checkpoint(large, tmp_path / "m.onnx", dtype="fp16")
    (tmp_path / "short.txt").write_text("a")
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    quantize(exact, tmp_path / "half.onnx", "fp16")
    cases = [
        ((exact, "int3"), {}, "no precision 'int3'"),
        ((exact, "int4"), {"kernel": "rows"}, "no kernel 'rows' for int4"),
        ((exact, "int8"), {"block_size": 48}, "the block size is 48"),
        ((exact, "int8"), {"text": tmp_path / "short.txt"}, "has 1 tokens"),
        ((exact, "int8"), {"text": tmp_path / "none.txt"}, "no text .*none.txt"),
        ((exact, "int8"), {"text": 5}, "text is 5; give the path"),
        ((exact, "int8"), {"block_sise": 32}, "no option 'block_sise'; choose from text, max_ppl_increase, "),
        ((exact, "int8"), {"block_size": 16}, "int8 rows have no blocks"),
        ((exact, "int8"), {"block_size": 32.0}, "block_size is 32.0"),
        ((exact, "int8"), {"max_ppl_increase": float("inf")}, "max_ppl_increase is inf"),
        ((exact, "int8"), {"max_ppl_increase": float("nan")}, "max_ppl_increase is nan"),
        ((exact, "int8"), {"min_agreement": 101}, "min_agreement is 101"),
        ((exact, "fp16"), {"block_size": 32}, "the block size is 32 for fp16; leave it out"),
        ((exact, "fp16"), {"kernel": "blocks"}, "no kernel 'blocks' for fp16"),
        ((exact, "fp32"), {}, "is to become fp32"),
        ((exact, ["int8"]), {}, r"no precision \['int8'\]"),
        ((exact, "int8"), {"text": latin}, "cannot read the text"),
        ((exact, "int8"), {"cache_dtype": "int8"}, "the cache is to be int8, and the file has none"),
        ((exact, "fp16"), {"cache_dtype": "int8"}, "no 'int8' cache for fp16"),
        ((tmp_path / "half.onnx", "int8"), {}, "is fp16 already"),
    ]
    for (source, dtype), options, message in cases:
        with pytest.raises(OptionError, match=message):
            quantize(source, tmp_path / "out.onnx", dtype, **options)
    assert not (tmp_path / "out.onnx").exists() and not (tmp_path / "m.onnx").exists()


def test_an_export_says_so_before_it_takes_time(tmp_path: Path) -> None:
    int4, fp32 = {"dtype": "int4"}, {"dtype": "fp32"}
    for options in (
        {**int4, "cache_dtype": "int8"}, {**int4, "text": tmp_path / "none.txt"}, {**int4, "block_size": 64},
        {**int4, "max_ppl": 3}, {**fp32, "max_ppl": 3}, {**fp32, "block_size": 32}, {**fp32, "quiet": True},
        {**int4, "atol": float("nan")}, {**fp32, "outputs": "hidden"}, {**fp32, "opset": 23.0},
    ):  # fmt: skip
        report: list[str] = []
        with pytest.raises(OptionError):
            export_checkpoint(small_checkpoint(), tmp_path / "m.onnx", report=report.append, **options)
        assert report == []


def test_options_are_typed_as_they_are_checked() -> None:
    names = {field.name for field in fields(Quantization)} - {"precision"}
    assert names == set(QuantizeOptions.__annotations__)


def test_quantizing_starts_without_pytorch(exact: Path, tmp_path: Path) -> None:
    """As does everything that can be imported of the exporter but what exports."""
    code = (
        "import sys, edgelm_export; assert 'onnx_ir' not in sys.modules; from pathlib import Path;"
        "edgelm_export.quantize(Path(sys.argv[1]), Path('half.onnx'), 'fp16');"
        "from edgelm_export import ParityReport, Quality, check_options; assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(exact)], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "half.onnx").exists()
