"""A whole training run, from named data to a folder with checkpoints, figures and a sample.

OUT/config.toml    every setting, resolved; a preset that gives the same run again
OUT/tokens/        the encoded data, reused while nothing changes
OUT/best, last     checkpoints; `last` can be resumed
OUT/loss.csv, .png the figures of every step
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from edgelm.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from edgelm.model import Transformer
from edgelm.training import shards
from edgelm.training.config import SAVED, RunConfig, TrainingConfig
from edgelm.training.distributed import World, joined
from edgelm.training.documents import Piece, cut, find_files, save_standard_input
from edgelm.training.report import CSV, PLOT, Reporter, Silent, plot
from edgelm.training.trainer import BEST, LAST, Trainer
from edgelm.training.validation import Measure
from edgelm.training.vocabulary import sample_texts, train_vocabulary
from edgelm_runtime.engine.threads import default_threads
from edgelm_runtime.errors import ConfigError, EdgelmError, OutputError
from edgelm_runtime.generation.results import ContextWarning
from edgelm_runtime.text.tokenizer import Tokenizer
from edgelm_runtime.text.tokenizer_loading import load_tokenizer

TOKENS, TOKENIZER, STANDARD_INPUT = "tokens", "tokenizer.json", "stdin.txt"
SAMPLE = "sample.txt"
_FINAL_FACTOR = 10
"""The last measure takes this many times `val_tokens`."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `measure` and `sample` belong to the best checkpoint of a run whose budget is used up."""

    finished: bool
    step: int
    writes: bool
    """Whether this process, of several, is the one that wrote the files and speaks."""
    measure: Measure | None = None
    sample: str = ""


def train(
    run: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    reporter: Reporter | None = None,
) -> Outcome:
    """Train as `run` says, into the folder `out`.

    To `resume`, give the saved run as `resumed` reads it. Raises ConfigError, DataError, TokenizerError,
    CheckpointError, OutputError or TrainingError.
    """
    torch.set_flush_denormal(True)  # tiny gradients would slow a CPU a hundredfold
    torch.set_num_threads(min(torch.get_num_threads(), default_threads()))  # PyTorch sees no container quota
    with _output_errors(out), joined(run.training.device) as world:
        reporter = reporter if reporter is not None and world.writes else Silent()
        start = _starting_point(run, out, resume)
        if world.writes:
            _claim(out, resume or overwrite)
        try:
            trainer = _trainer(run, out, start, resume, world, reporter)
        except BaseException:
            with suppress(OSError):  # a folder that is still empty goes; any other stays
                out.rmdir()
            raise
        if world.writes:
            if not resume:
                _clear(out)
            run.save(out / SAVED)
        if not trainer.run():
            return Outcome(False, trainer.position.step, world.writes)
        return _finish(trainer)


@contextmanager
def _output_errors(out: Path) -> Iterator[None]:
    """A file of the run that cannot be written is an OutputError."""
    try:
        yield
    except OSError as error:
        if isinstance(error, EdgelmError):
            raise
        raise OutputError(
            f"cannot write {error.filename or out}: {error.strerror}",
            "free some space or choose another folder",
        ) from error


def _trainer(
    run: RunConfig, out: Path, start: Checkpoint | None, resume: bool, world: World, reporter: Reporter
) -> Trainer:
    """Everything that a run needs, ready to go."""
    tokenizer, mark = _prepare(run, out, start, resume, world, reporter)
    checkpoint = _model(run, start, tokenizer, resume)
    data = _data(run, out, checkpoint, reporter)
    trainer = Trainer(checkpoint, data, run.training, out, world, reporter, mark)
    if resume:
        trainer.resume()
        reporter.note(f"going on from step {trainer.position.step}")
    return trainer


def _claim(out: Path, may_be_taken: bool) -> None:
    """Make sure that `out` can take this run, before anything costs time."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {out}: {error.strerror}", "choose another one") from error
    if not may_be_taken and ((out / LAST).exists() or (out / BEST).exists()):
        raise OutputError(f"{out} already holds a run", "go on with --resume, replace it with --overwrite")


def _clear(out: Path) -> None:
    """Remove an earlier run, now that the new one is sure to start."""
    for name in (LAST, BEST):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in (CSV, PLOT, SAMPLE):
        (out / name).unlink(missing_ok=True)


def _starting_point(run: RunConfig, out: Path, resume: bool) -> Checkpoint | None:
    """The checkpoint to go on from; None for a new model."""
    if resume:
        return load_checkpoint(out / LAST)
    return load_checkpoint(Path(run.training.init_from)) if run.training.init_from else None


def _prepare(
    run: RunConfig, out: Path, start: Checkpoint | None, resume: bool, world: World, reporter: Reporter
) -> tuple[Tokenizer, str]:
    """Tokenizer and token files, made by one process. Returns the tokenizer and the files' fingerprint."""
    config, saved = run.training, out / TOKENIZER
    if world.writes:
        files = _files(run, out, resume)
        pieces = list(cut(files))
        tokenizer = _tokenizer(config, start, pieces, reporter)
        saved.write_text(json.dumps(tokenizer.to_dict()), encoding="utf-8")
        mark = shards.fingerprint(files, config.field, tokenizer, config.holdout)
        if shards.stored_fingerprint(out / TOKENS) == mark:
            reporter.note(f"the data is unchanged, so the tokens in {out / TOKENS} are used again")
        else:
            shards.build(
                out / TOKENS, pieces, tokenizer, _separator(tokenizer, start), config.field, config.holdout,
                mark, default_threads(), lambda done, total: reporter.preparing("encoding", done, total),
            )  # fmt: skip
    world.wait()
    return load_tokenizer(saved), shards.stored_fingerprint(out / TOKENS)


def _files(run: RunConfig, out: Path, resume: bool) -> list[Path]:
    """The data's files; standard input is one of them, saved when a run starts."""
    config, piped = run.training, out / STANDARD_INPUT
    if "-" in config.data and not resume:
        save_standard_input(piped)
    names = [str(piped) if name == "-" else name for name in config.data]
    return find_files(names, config.include, config.exclude)


def _tokenizer(
    config: TrainingConfig, start: Checkpoint | None, pieces: Sequence[Piece], reporter: Reporter
) -> Tokenizer:
    """The given model's tokenizer, the one that the settings name, or a new one."""
    if start is not None and start.tokenizer is not None:
        return start.tokenizer
    if config.tokenizer != "bpe":
        return load_tokenizer(config.tokenizer)
    if start is not None:
        raise ConfigError(
            f"{config.init_from} has no tokenizer", "name the one it was trained with: --tokenizer"
        )
    reporter.note("training the tokenizer")
    return train_vocabulary(sample_texts(pieces, config.field), config.vocab_size)


def _separator(tokenizer: Tokenizer, start: Checkpoint | None) -> int | None:
    """The id behind every document: the tokenizer's end-of-text, else what a given model ends with."""
    if tokenizer.end_of_text is not None:
        return tokenizer.end_of_text
    ends = start.generation.get("end_ids", []) if start is not None else []
    return int(ends[0]) if ends else None


def _model(run: RunConfig, start: Checkpoint | None, tokenizer: Tokenizer, resume: bool) -> Checkpoint:
    """The model to train, new or given. Raises ConfigError where the tokenizer does not fit it."""
    if start is None:
        torch.manual_seed(run.training.seed)
        separator = _separator(tokenizer, None)
        ends = [] if separator is None else [separator]
        return Checkpoint(Transformer(run.model_config(tokenizer.vocab_size)), tokenizer, {"end_ids": ends})
    if tokenizer.vocab_size > start.config.vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size} ids and the model only {start.config.vocab_size}",
            "choose the tokenizer that the model was trained with",
        )
    origin = start.origin if resume else {"started_from": start.origin}
    return Checkpoint(start.model, tokenizer, start.generation, origin)


def _data(run: RunConfig, out: Path, checkpoint: Checkpoint, reporter: Reporter) -> shards.TokenData:
    data = shards.load(out / TOKENS, checkpoint.config.context_length, run.training.holdout)
    if data.skipped:
        named = ", ".join(data.skipped[:3]) + (", ..." if len(data.skipped) > 3 else "")
        reporter.note(f"left out {len(data.skipped)} that are not UTF-8 text: {named}")
    how = {
        "by document": "by document",
        "tail of the tokens": "the tail, since documents are too few or uneven",
        "none": "the same, since there is so little",
    }
    reporter.note(
        f"{data.documents} documents: {len(data.train):,} tokens to train on, "
        f"{len(data.val):,} held out ({how[data.split]}); "
        f"model: {parameters(checkpoint.model):,} parameters, vocabulary {checkpoint.config.vocab_size}"
    )
    return data


def parameters(model: Transformer) -> int:
    """Number of weights; a tied head counts once."""
    return sum(weight.numel() for weight in model.parameters())


def _finish(trainer: Trainer) -> Outcome:
    """Measure the best checkpoint thoroughly, write that into it, draw the curve, and let it speak."""
    trainer.world.wait()
    best = load_checkpoint(trainer.out / BEST)
    trainer.model.load_state_dict(best.model.state_dict())
    measure = trainer.measure(_FINAL_FACTOR * trainer.config.val_tokens)
    step = trainer.position.step
    if not trainer.world.writes:
        return Outcome(True, step, False, measure)
    best.origin["training"] |= measure.to_dict()
    save_checkpoint(best, trainer.out / BEST)
    plot(trainer.out)
    sample = sample_text(best, trainer.config.sample_prompt)
    (trainer.out / SAMPLE).write_text(sample, encoding="utf-8")
    return Outcome(True, step, True, measure, sample)


def sample_text(checkpoint: Checkpoint, prompt: str, length: int = 120) -> str:
    """What the model makes of `prompt` at temperature 0.7, the prompt included."""
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        return ""
    separator = _separator(tokenizer, checkpoint)
    ids = tokenizer.encode(prompt) or [0 if separator is None else separator]
    ends = checkpoint.generation.get("end_ids", [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextWarning)  # a sample may well be longer than a small context
        made = checkpoint.model.generate(ids, end_ids=ends, max_new_tokens=length, temperature=0.7, seed=0)
    # A vocabulary padded beyond the tokenizer can be sampled from a model that has not learned better.
    return prompt + tokenizer.decode([i for i in made if i < tokenizer.vocab_size], skip_special=True)
