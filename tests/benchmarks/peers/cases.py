"""What is measured, of whom, and what edgelm is meant to reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True, eq=False)
class Subject:
    """A peer with a model: the environment it runs in, its adapter, the model's name, the adapter's options."""

    name: str
    environment: str
    adapter: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Goal:
    """`ratio` is what a peer's figure is to be at least, in multiples of edgelm's.

    For perplexity it limits edgelm's.
    """

    ours: str
    peer: str
    ratio: float


@dataclass(frozen=True)
class Case:
    """`kind` says what a round is (see run.py). `prompt` and `count` are numbers of tokens."""

    title: str
    kind: str
    subjects: tuple[Subject, ...]
    prompt: int = 64
    count: int = 64
    goals: tuple[Goal, ...] = ()
    repetitive: bool = False


def edgelm(model: str, label: str = "", **options: Any) -> Subject:
    return Subject(f"edgelm {label or model.removesuffix('.onnx')}", "edgelm", "edgelm", model, options)


def transformers(model: str, label: str = "transformers", **options: Any) -> Subject:
    return Subject(label, "transformers", "hf", model, options)


LLAMA = Subject("llama-cpp-python Q4_1", "llama", "llama", GGUF)
LLAMA_SCORES = Subject("llama-cpp-python Q4_1", "llama", "llama", GGUF, {"logits_all": True})


def genai(model: str) -> Subject:
    return Subject(f"onnxruntime-genai {model.removeprefix('smollm2-genai-')}", "genai", "genai", model)


INT4, FP32, INT8 = "smollm2-int4-cache.onnx", "smollm2-fp32-cache.onnx", "smollm2-int8.onnx"
SMOL = "smollm2-hf"
UNCACHED = transformers(SMOL, "transformers use_cache=False", use_cache=False)
NAIVE = Subject("first sketch in PyTorch", "transformers", "naive", SMOL)
EAGER = Subject("PyTorch eager", "edgelm", "eager", "smollm2-checkpoint")


def _large(model: str) -> tuple[Case, ...]:
    """What a model of a size that fills memory is measured by, in 4 bits; its weights are random."""
    ours = edgelm(f"{model}-int4-cache.onnx", f"{model} int4")
    llama = Subject(f"llama-cpp-python {model} Q4_0", "llama", "llama", f"{model}.Q4_0.gguf")
    other = Subject(f"onnxruntime-genai {model} int4", "genai", "genai", f"{model}-genai-int4")
    subjects = (ours, llama, other)
    return (
        Case(
            f"{model}, decoding, tokens/s", "decode", subjects, count=48,
            goals=(Goal(ours.name, llama.name, 1.1), Goal(ours.name, other.name, 1.0)),
        ),
        Case(
            f"{model}, prefill of 512 tokens, ms", "prefill", subjects, prompt=512,
            goals=(Goal(ours.name, llama.name, 1.5), Goal(ours.name, other.name, 1.5)),
        ),
        Case(f"{model}, process start to first token, s", "start", subjects, prompt=8, count=1),
        Case(f"{model}, peak memory, MB", "memory", subjects),
    )  # fmt: skip


CASES = (
    Case(
        "decoding with a cache, 4-bit, tokens/s", "decode",
        (edgelm(INT4, "int4"), edgelm(INT4, "int4 with lookup", lookup="auto"), genai("smollm2-genai-int4"),
         genai("smollm2-genai-int4-k_quant_mixed"), LLAMA), count=128,
        goals=(
            Goal("edgelm int4", "onnxruntime-genai int4", 1.8), Goal("edgelm int4", "llama-cpp-python Q4_1", 1.6),
            Goal("edgelm int4", "onnxruntime-genai int4-k_quant_mixed", 1.8),
            Goal("edgelm int4 with lookup", "onnxruntime-genai int4", 1.8),
            Goal("edgelm int4 with lookup", "onnxruntime-genai int4-k_quant_mixed", 1.8),
            Goal("edgelm int4 with lookup", "llama-cpp-python Q4_1", 1.6),
        ),
    ),
    Case(
        "decoding with a cache, fp32, tokens/s", "decode",
        (edgelm(FP32, "fp32"), transformers(SMOL), genai("smollm2-genai-fp32"),
         Subject("optimum-onnx fp32", "optimum", "optimum", "smollm2-optimum")), count=128,
        goals=(Goal("edgelm fp32", "transformers", 1.7),),
    ),
    Case(
        "no cache, 64 tokens after 32, s", "total",
        (edgelm(INT8, "int8"), edgelm("smollm2-fp32.onnx", "fp32"), UNCACHED, NAIVE, EAGER), prompt=32,
        goals=(
            Goal("edgelm int8", UNCACHED.name, 4), Goal("edgelm fp32", UNCACHED.name, 1.5),
        ),
    ),
    Case(
        "no cache, 64 tokens after 32 that repeat themselves, s", "total",
        (edgelm("smollm2-fp32.onnx", "fp32 with lookup", lookup="auto"), UNCACHED), prompt=32, repetitive=True,
        goals=(Goal("edgelm fp32 with lookup", UNCACHED.name, 2.5),),
    ),
    Case(
        "prefill of 512 tokens, ms", "prefill",
        (edgelm(INT8, "int8"), edgelm(INT4, "int4"), LLAMA, genai("smollm2-genai-int4"), transformers(SMOL)),
        prompt=512, goals=(Goal("edgelm int8", LLAMA.name, 5),),
    ),
    Case(
        "decoding after 64 tokens, ms per token", "step", (edgelm(INT4, "int4"), edgelm(FP32, "fp32"), LLAMA),
        count=32,
    ),
    Case(
        "decoding after 1000 tokens, ms per token", "step", (edgelm(INT4, "int4"), edgelm(FP32, "fp32"), LLAMA),
        prompt=1000, count=32,
    ),
    Case(
        "process start to first token, s", "start",
        (Subject("edgelm run, bundled model", "edgelm", "command", ""), edgelm("ten-million-fp32.onnx", "ten million"),
         transformers("ten-million-hf", "transformers, ten million")), prompt=32, count=1,
        goals=(Goal("edgelm run, bundled model", "transformers, ten million", 4),),
    ),
    Case(
        "peak memory, MB", "memory", (edgelm(INT4, "int4"), LLAMA, genai("smollm2-genai-int4"), transformers(SMOL)),
    ),
    Case(
        "ten million parameters, decoding with a cache, tokens/s", "decode",
        (edgelm("ten-million-fp32-cache.onnx", "fp32"), edgelm("ten-million-int4-cache.onnx", "int4"),
         transformers("ten-million-hf")),
        goals=(Goal("edgelm fp32", "transformers", 1.7),),
    ),
    Case(
        "ten million parameters, no cache, 64 tokens after 32, s", "total",
        (edgelm("ten-million-fp32.onnx", "fp32"), edgelm("ten-million-int8.onnx", "int8"),
         transformers("ten-million-hf", UNCACHED.name, use_cache=False),
         Subject("first sketch in PyTorch", "transformers", "naive", "ten-million-hf")),
        prompt=32, goals=(Goal("edgelm fp32", UNCACHED.name, 1.5),),
    ),
    Case(
        "perplexity", "perplexity",
        (edgelm(INT4, "int4"), edgelm(INT8, "int8"), edgelm(FP32, "fp32"), LLAMA_SCORES,
         genai("smollm2-genai-int4"), genai("smollm2-genai-int4-k_quant_mixed")),
        goals=(Goal("edgelm int4", LLAMA.name, 1 / 1.01),),
    ),
)  # fmt: skip
LARGE = ("llama-1b", "qwen3-0.6b")
"""Shapes of `random_model.py` that `--large` measures as well."""
LARGE_CASES = tuple(case for model in LARGE for case in _large(model))
