"""`edgelm score`: how well a model predicts texts."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

import click

from edgelm.cli.arguments import read_once, read_text, reading_options
from edgelm.cli.options import load_model, loading_options, parse_ids
from edgelm.cli.streams import print_json
from edgelm_runtime.errors import OptionError

if TYPE_CHECKING:
    from edgelm_runtime import LanguageModel, Score


@click.command("score")
@click.argument("model")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--stride", type=int, metavar="TOKENS", help="Tokens scored per pass. [half the context]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per file.")
@reading_options
@loading_options
def command(model: str, files: tuple[str, ...], stride: int | None, as_json: bool, **options: Any) -> None:
    """Measure how well MODEL predicts each FILE (- is standard input): perplexity per token, bits per byte.

    A smaller stride lets every token see more of the text before it, and takes longer. Bits per byte compare
    models whatever their tokenizers.
    """
    from edgelm_runtime.scoring import combined

    read_once(files)
    reading = {name: options.pop(name) for name in ("encoding", "decode_errors")}
    with load_model(model, options) as lm:
        texts = [lm.encode_prompt(_content(lm, file, reading)) for file in files]
        scores = []
        with click.progressbar(
            length=sum(max(len(ids) - 1, 0) for ids in texts),
            label="scoring",
            file=sys.stderr if sys.stderr.isatty() else io.StringIO(),
        ) as bar:
            for file, ids in zip(files, texts, strict=True):
                try:
                    scores.append(lm.score(ids, stride=stride, progress=bar.update))
                except OptionError as error:
                    raise OptionError(f"{file}: {error.problem}", error.remedy) from error
    for file, score in zip(files, scores, strict=True):
        _show(file, score, as_json)
    if len(files) > 1:
        _show("total", combined(scores), as_json)


def _content(lm: LanguageModel, file: str, reading: dict[str, Any]) -> Any:
    """What a file holds, as `encode_prompt` takes it: text, or ids for a model without a tokenizer."""
    text = read_text(file, **reading)
    return text if lm.info.tokenizer is not None else parse_ids(text)


def _show(name: str, score: Score, as_json: bool) -> None:
    if as_json:
        about = {
            "file": name,
            "tokens": len(score.logprobs),
            "bytes": score.byte_count,
            "perplexity": score.perplexity,
            "bits_per_byte": score.bits_per_byte if score.byte_count else None,
        }
        print_json(about)
        return
    bits = f", {score.bits_per_byte:.4f} bits per byte" if score.byte_count else ""
    click.echo(f"{name}: {len(score.logprobs)} tokens, perplexity {score.perplexity:.4f}{bits}")
