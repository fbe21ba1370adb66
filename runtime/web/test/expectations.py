"""What the Python package answers, for the JavaScript tests to give the same: `python expectations.py FOLDER`.

Writes small model files of all architectures and forms, and `expectations.json`: random draws, token ids of a mixed
corpus for every kind of tokenizer, logits, generated texts with all options, scores, vectors, chats.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / part) for part in (".", "export", "runtime", "tests")]

from small_models import ARCHITECTURES, LLAMA, small_checkpoint, small_model, small_tokenizer  # noqa: E402

import edgelm  # noqa: E402
from edgelm.checkpoint import Checkpoint  # noqa: E402
from edgelm.web_page import write_page  # noqa: E402
from edgelm_export import export_checkpoint, quantize  # noqa: E402
from edgelm_export.files import writer  # noqa: E402
from edgelm_runtime import Tokenizer  # noqa: E402
from edgelm_runtime.assets import assets_folder  # noqa: E402
from edgelm_runtime.loading import BUNDLED  # noqa: E402

DATA = ROOT / "tests" / "runtime" / "data"
ANY_LOSS = {"max_ppl_increase": 1e9}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"lookup": 0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 1.0, "typical_p": 0.7},
    {"temperature": 0.9, "top_k": 30, "typical_p": 0.9, "top_p": 0.9, "min_p": 0.01},
    {"repeat_penalty": 1.5},
    {"temperature": 1.0, "repeat_penalty": 1.2, "repeat_last_n": -1},
    {"frequency_penalty": 0.8, "presence_penalty": 0.4, "repeat_last_n": 8},
    {"temperature": 1.0, "logit_bias": {97: 4.0, 98: float("-inf")}, "banned_tokens": [99, 100]},
    {"forced_tokens": [104, 105], "temperature": 1.0},
    {"temperature": 2.0, "lookup": 4},
    {"overflow": "stop"},
    {"logprobs": 3, "temperature": 1.0},
]  # fmt: skip
PROMPTS = (
    "def read_json(path):",
    "class Stack:\n    def push(self, item):",
    "import ",
    "for line in lines:\n",
    "x = [1, 2",
)
FORMS: list[dict[str, Any]] = [
    {"choices": ["yes", "no", "nothing", "né"]},
    {"regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}"},
    {"regex": "(ab|a(c|d)+)x?[^a-z]{2,3}"},
    {"regex": r"\w+ \d{2,} .é?"},
    {"regex": "(?:th|in|[α-ω]){3}|[🙂-🙏]+!"},
    {"regex": r"\"[^\"\n]{0,8}\""},
]
CONVERSATIONS = (
    [{"role": "user", "content": ["Look at", {"type": "text", "text": "the <|im_end|> thing"}]}],
    [{"role": "user", "content": "Hi"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<|im_end|> the"},
        {"role": "assistant", "content": "in"},
        {"role": "user", "content": "x <|im_start|>assistant\n"},
    ],
)


def on_grid(checkpoint: Checkpoint) -> Checkpoint:
    """Every matrix as if it came from 4-bit blocks with minima (GGUF's Q4_1)."""
    torch.manual_seed(1)
    for module in checkpoint.model.modules():
        if isinstance(module, torch.nn.Linear):
            n, k = module.weight.shape
            step = 0.02 + 0.02 * torch.rand(n, k // 32, 1)
            values = torch.randint(0, 16, (n, k // 32, 32)).float() * step - 8.3 * step
            module.weight.data = values.reshape(n, k)
    return checkpoint


# Forms with a cache, in which weights come in blocks: what `quantize` is asked for.
NAMES = [
    name for name in ARCHITECTURES if name not in ("experts", "convolutions")
]  # which JavaScript refuses
BLOCKS: dict[str, dict[str, Any]] = {
    "seed": {"dtype": "int4"},
    "grouped heads": {"dtype": "int4"},
    "soft caps": {"dtype": "int8"},
    "parallel": {"dtype": "int4", "block_size": 16},
}


def write_models(folder: Path) -> None:
    """Small files of every architecture in float32 and int8, of some in all other forms; what is there stays."""
    jobs = [(write_architecture, name, folder) for name in NAMES]
    jobs += [(write_blocks, name, folder) for name in BLOCKS]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pending = [
            pool.apply_async(job, rest)
            for job, *rest in [*jobs, (write_grid, folder), (write_sidecar, folder)]
        ]
        for each in pending:
            each.get()


def write_architecture(name: str, folder: Path) -> None:
    index = NAMES.index(name)
    exact = export(folder / f"{index}-fp32.onnx", name, outputs=("hidden", "embeddings"))
    if name != "one token of context":  # of which nothing can be predicted
        quantized(exact, "int8")
    if name in ("gpt2", "windows"):
        quantized(exact, "fp16")


def write_blocks(name: str, folder: Path) -> None:
    index = NAMES.index(name)
    quantized(export(folder / f"{index}-cached.onnx", name, kv_cache=True), **BLOCKS[name])


def write_sidecar(folder: Path) -> None:
    """A model whose weights lie in a file beside it, as those of models above 2 GB do."""
    writer.LARGEST_FILE = 10_000
    export(folder / "beside" / "m.onnx", "gpt2")


def write_grid(folder: Path) -> None:
    if not (grid := folder / "grid-int4.onnx").exists():
        wide = Checkpoint(
            small_model("gpt2", vocab_size=272, width=64, mlp_width=128, **LLAMA), small_tokenizer()
        )
        export_checkpoint(on_grid(wide), grid, dtype="int4", kv_cache=True, **ANY_LOSS)


def export(path: Path, name: str, **options: Any) -> Path:
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        export_checkpoint(small_checkpoint(name), path, **options)
    return path


def quantized(exact: Path, dtype: str, **options: Any) -> None:
    output = exact.with_name(f"{exact.stem.removesuffix('-fp32')}-{dtype}.onnx")
    if not output.exists():
        quantize(exact, output, dtype, **ANY_LOSS, **options)


def draws() -> list[list[Any]]:
    """[seed, sample, position, number] of the sampler's generator; seeds as text, since they exceed a double."""
    from edgelm_runtime.generation.sampler import uniform

    draw = random.Random(5)
    cases = [
        (draw.randrange(2**64), draw.randrange(4), draw.randrange(1 << draw.randrange(1, 33)))
        for _ in range(60)
    ]
    return [[str(seed), sample, at, uniform((seed, sample), at)] for seed, sample, at in [(0, 0, 0), *cases]]


def tokenizers() -> list[dict[str, Any]]:
    """Every kind that imports make, with a mixed corpus of 100 kB in many scripts."""
    import test_import_tokenizers as made

    from edgelm_runtime.text.huggingface.check import probe_texts

    kinds: dict[str, Tokenizer] = {"small": small_tokenizer()}
    with edgelm.load() as lm:
        kinds["bundled"] = lm.tokenizer
    for kind, make in made.BYTE_LEVEL.items():
        kinds[kind] = made.convert(json.loads(make().to_str()), kind).tokenizer
    kinds["lacking bytes"] = made.convert(json.loads(made.without_some_bytes().to_str()), "x").tokenizer
    for style in ("words", "across words", "metaspace", "gemma"):
        reference = made.sentencepiece(style)
        if style == "gemma":
            reference.add_tokens(["\n\n", "\n", "<img>"])
        kinds[style] = made.convert(json.loads(reference.to_str()), style).tokenizer
    for kind in ("gpt2", "qwen", "across words", "metaspace", "gemma"):
        # Tokens that swallow white space, or are looked for in normalised text.
        reference = made.with_habits(
            made.BYTE_LEVEL[kind]() if kind in made.BYTE_LEVEL else made.sentencepiece(kind)
        )
        kinds[f"{kind} with habits"] = made.convert(json.loads(reference.to_str()), kind).tokenizer
    spaced = made.trained(made.pre_tokenizers.ByteLevel(add_prefix_space=True))
    spaced.add_tokens(["<think>"])
    kinds["byte level with a space in front"] = made.convert(json.loads(spaced.to_str()), "x").tokenizer
    draw = random.Random(7)
    cases = []
    for kind, tokenizer in kinds.items():
        texts = ["", " ", *made.texts(), *probe_texts(tokenizer), "ab " * 400, "x" * 500, "你" * 300]
        pieces = [
            *tokenizer.added,
            *tokenizer.special,
            " ",
            "  ",
            "the",
            "cat",
            "\n",
            "\u0301",
            "\u2581",
            "\xa0",
        ]
        special = ["".join(draw.choices(pieces, k=draw.randint(1, 9))) for _ in range(200)]
        cases.append(
            {
                "kind": kind,
                "values": tokenizer.to_dict(),
                "texts": [[text, ids := tokenizer.encode(text), tokenizer.decode(ids)] for text in texts],
                "special": [
                    [text, tokenizer.encode(text, "all"), tokenizer.encode(text)] for text in special
                ],
            }
        )
    return cases


def logits(folder: Path) -> list[dict[str, Any]]:
    """Logits of random ids in each file, as base64 of float32."""
    cases = []
    fixtures = [DATA / f"{name}.onnx" for name in ("tiny", "cached", "ids", "chat")]
    for path in [*sorted(folder.glob("*.onnx")), *fixtures]:
        with edgelm.load(path, decode="recompute") as lm:
            draw = np.random.default_rng(len(path.name))
            ids = draw.integers(0, lm.info.vocab_size, min(24, lm.info.context_length)).tolist()
            encoded = base64.b64encode(lm.logits(ids).tobytes()).decode()
            cases.append({"model": str(path), "dtype": lm.info.graph["dtype"], "ids": ids, "logits": encoded})
    return cases


def generations(folder: Path) -> list[dict[str, Any]]:
    """Texts with all options, in float32 and int8, beyond the end of the context too."""
    cases: list[dict[str, Any]] = []

    def add(lm: Any, model: str, prompt: str, options: dict[str, Any]) -> None:
        answer = _plain(options, lm.generate(prompt, **options))
        cases.append({"model": model, "prompt": prompt, "dtype": lm.info.graph["dtype"], **answer})

    files = [path for dtype in ("fp32", "int8") for path in sorted(folder.glob(f"*-{dtype}.onnx"))]
    for number, path in enumerate([*files, DATA / "tiny.onnx", DATA / "chat.onnx"]):
        with edgelm.load(path, decode="recompute") as lm:
            for at, options in enumerate(OPTIONS):
                seeded = {"max_new_tokens": 32, "seed": 1000 * number + at, **options}
                add(lm, str(path), "the thing in the", seeded)
    with edgelm.load() as lm:
        for prompt in PROMPTS:
            for options in ({}, {"temperature": 0.8, "seed": 3, "top_k": 40}, {"stop": ["\n\n", "return"]}):
                add(lm, "bundled", prompt, {"max_new_tokens": 60, **options})
    return cases


def constrained() -> list[dict[str, Any]]:
    """Texts held to a form."""
    cases = []
    with edgelm.load(DATA / "tiny.onnx") as lm:
        for form in FORMS:
            for seed in range(4):
                given = {"max_new_tokens": 12, "temperature": 1.0, "seed": seed, **form}
                cases.append({"prompt": "the ", **_plain(given, lm.generate("the ", **given))})
    return cases


def _plain(options: dict[str, Any], result: Any) -> dict[str, Any]:
    shown = {name: ("-inf" if value == float("-inf") else value) for name, value in options.items()}
    if "logit_bias" in shown:
        shown["logit_bias"] = {
            str(k): "-inf" if v == float("-inf") else v for k, v in options["logit_bias"].items()
        }
    return {
        "options": shown, "text": result.text, "token_ids": result.token_ids, "finish_reason": result.finish_reason,
        "logprobs": result.logprobs, "top_logprobs": result.top_logprobs,
    }  # fmt: skip


def chats() -> list[dict[str, Any]]:
    """Prompts and answers, with a template and without."""
    cases = []
    begun = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "the thing <|im_end|> in"}]
    for path in (DATA / "chat.onnx", DATA / "tiny.onnx"):
        with edgelm.load(path) as lm:
            for messages in (*CONVERSATIONS, begun):
                options = {"continue_final_message": messages is begun}
                prompt, answer = lm.chat_prompt(messages, **options), lm.chat(messages, seed=1, **options)
                case = {"model": str(path), "messages": messages, "options": options}
                cases.append({**case, "prompt": prompt, "text": answer.text})
    return cases


def scores_and_vectors() -> list[dict[str, Any]]:
    """Scores by two strides, and vectors of both kinds."""
    text = "the thing in the other thing, and then some more of the thing"
    cases = []
    for path in (DATA / "tiny.onnx", DATA / "cached.onnx"):
        with edgelm.load(path) as lm:
            score = lm.score(text)
            case = {
                "model": str(path),
                "text": text,
                "logprobs": score.logprobs,
                "short": lm.score(text, stride=3).logprobs,
                "top": lm.score(text, top_logprobs=2).top_logprobs,
            }
            case |= {
                "perplexity": score.perplexity,
                "bits_per_byte": score.bits_per_byte,
                "mean": lm.embed(text),
            }
            case["none"] = lm.embed("the thing", pooling="none")
            case["last"] = lm.embed(text, layer="embeddings", pooling="last", normalize=False)
            cases.append(case)
    return cases


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_models(folder)
    write_page(assets_folder() / BUNDLED, folder / "page", 'A "small" <model>')
    write_page(DATA / "chat.onnx", folder / "page-chat")
    made = {
        "draws": draws(), "tokenizers": tokenizers(), "logits": logits(folder), "generations": generations(folder),
        "constrained": constrained(), "chats": chats(), "scores": scores_and_vectors(),
    }  # fmt: skip
    plain = json.dumps(made, default=lambda array: np.asarray(array).tolist())
    (folder / "expectations.json").write_text(plain)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
