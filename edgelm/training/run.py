"""A whole training run, from named data to a folder with checkpoints, figures and a sample (see run_folder.py)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from edgelm.checkpoint import HELD_OUT, Checkpoint, load_checkpoint, save_checkpoint
from edgelm.data.files import refuse_overlap
from edgelm.data.shards import TOKENIZER
from edgelm.finetuning.chats import holds_chats
from edgelm.finetuning.dpo import PreferenceObjective, reference_margins
from edgelm.finetuning.lora import add_adapters
from edgelm.finetuning.rows import ChatRows
from edgelm.finetuning.templates import widened
from edgelm.importers import load_source
from edgelm.model import Attend, Transformer, causal_attention, generate
from edgelm.training.attention import blocked_attention
from edgelm.training.chats import ask, chat_material, held_out_chats, prepare_rows, spoken_as
from edgelm.training.config import RunConfig, TrainingConfig
from edgelm.training.distributed import World, joined
from edgelm.training.loss import Objective
from edgelm.training.report import Reporter, Silent, plot
from edgelm.training.run_folder import SAMPLE, RunFolder, claimed
from edgelm.training.saves import read_reference
from edgelm.training.text import find_corpus, frame_of, prepare_tokens, text_material
from edgelm.training.trainer import Trainer
from edgelm.training.validation import Measure
from edgelm_runtime.atomic_files import write_file
from edgelm_runtime.engine.threads import default_threads
from edgelm_runtime.errors import ConfigError, EdgelmError, OutputError
from edgelm_runtime.generation.results import ContextWarning
from edgelm_runtime.model_file.interface import END_IDS
from edgelm_runtime.text.tokenizer import Tokenizer
from edgelm_runtime.text.tokenizer_loading import load_tokenizer

_FINAL_FACTOR = 10
"""The last measure takes this many times `val_tokens`."""
_LARGE_MODEL, _USUAL_RANK = 500_000_000, 16
"""Weights from which on a given model is taught by adapters unless the settings say otherwise, and their rank.

Weights, gradients and AdamW's two averages take 16 bytes per weight: 8 GB there."""


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
    config = run.training
    with _output_errors(out), joined(config.device) as world:
        reporter = reporter if reporter is not None and world.writes else Silent()
        refuse_overlap(config.data, out, config.exclude)
        claim = (
            claimed(out, resume=resume, overwrite=overwrite) if world.writes else nullcontext(RunFolder(out))
        )
        with claim as folder:
            world.wait()
            trainer = _trainer(run, folder, resume, world, reporter)
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


def _trainer(run: RunConfig, folder: RunFolder, resume: bool, world: World, reporter: Reporter) -> Trainer:
    """Everything that a run needs, ready to go."""
    config = run.training
    start = _starting_point(run, folder, resume)
    context = start.config.context_length if start is not None else run.model_config(1).context_length
    fingerprint, teaches = "", False
    if world.writes:
        corpus = find_corpus(config, folder, resume)
        if teaches := holds_chats(corpus.files[0], corpus.reading):
            fingerprint = prepare_rows(corpus, config, folder, start, context, resume, reporter)
        else:
            _refuse_teaching(config)
            fingerprint = prepare_tokens(corpus, config, folder, start, resume, reporter)
    tokens = folder.tokens / world.shared(fingerprint)
    teaches = (tokens / HELD_OUT).is_file()
    tokenizer = load_tokenizer(tokens / TOKENIZER)
    checkpoint = _model(run, start, tokenizer, resume)
    if config.lora < 0:
        run = _with_usual_rank(run, checkpoint.model, start is not None)
        config = run.training
    model = checkpoint.model.to(world.device)
    attend = blocked_attention if world.device.type == "cpu" else causal_attention
    make_objective: Callable[[Transformer], nn.Module] = partial(Objective, attend=attend)
    if teaches:
        checkpoint.generation, checkpoint.held_out = spoken_as(tokens), held_out_chats(tokens)
        reference = None
        if config.objective == "dpo":
            reference = _reference(folder, tokens, model, attend, resume)
            make_objective = partial(PreferenceObjective, attend=attend, beta=config.dpo_beta)
        material = chat_material(tokens, config, reference, reporter)
    else:
        reference = None
        material = text_material(tokens, tokens.name, context, config, reporter)
    if config.lora:
        add_adapters(model, config.lora, config.seed)
    reporter.note(
        f"model: {parameters(model):,} parameters, vocabulary {checkpoint.config.vocab_size}"
        + (f", of which {trained(model):,} are trained" if config.lora else "")
    )
    trainer = Trainer(checkpoint, make_objective, material, run, folder, world, reporter, reference)
    if resume:
        trainer.resume()
        reporter.note(f"going on from step {trainer.position.step}")
    elif start is not None:
        _before(trainer, reporter)
    return trainer


def _with_usual_rank(run: RunConfig, model: Transformer, given: bool) -> RunConfig:
    """The run with adapters where its model was given and is a large one."""
    rank = _USUAL_RANK if given and parameters(model) >= _LARGE_MODEL else 0
    return replace(run, training=replace(run.training, lora=rank))


def _refuse_teaching(config: TrainingConfig) -> None:
    """Raise ConfigError where a setting is for chats, and the data is text."""
    for name, usual in (("chat_template", ""), ("objective", "likelihood"), ("loss", "answers")):
        if getattr(config, name) != usual:
            raise ConfigError(
                f"{name} is {getattr(config, name)!r}, and the data holds no chats",
                "give chats: JSON lines with messages, for instance",
            )


def _reference(
    folder: RunFolder, tokens: Path, model: Transformer, attend: Attend, resume: bool
) -> torch.Tensor:
    """What the model at the start makes of each pair; saved with a run, since that model may be gone later."""
    if resume:
        return read_reference(folder)
    return reference_margins(model.eval(), attend, ChatRows.load(tokens))


def _before(trainer: Trainer, reporter: Reporter) -> None:
    """Say how good the model is before it is trained."""
    found = trainer.measure(trainer.config.val_tokens)
    if trainer.world.writes:
        reporter.note(f"before training: held out {found.loss:.4f}")
        if trainer.checkpoint.held_out:
            question, answer = ask(trainer.checkpoint, trainer.checkpoint.held_out[0])
            reporter.note(f"asked: {_short(question)}\nit says: {_short(answer)}")


def _short(text: str, most: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]}..."


def _starting_point(run: RunConfig, folder: RunFolder, resume: bool) -> Checkpoint | None:
    """The model to go on from; None for a new one."""
    config = run.training
    if resume:
        return load_checkpoint(folder.last)
    if not config.init_from:
        return None
    return load_source(config.init_from, None if config.tokenizer == "bpe" else config.tokenizer)


def _model(run: RunConfig, start: Checkpoint | None, tokenizer: Tokenizer, resume: bool) -> Checkpoint:
    """The model to train, new or given, with room for the tokenizer's ids."""
    if start is None:
        torch.manual_seed(run.training.seed)
        end = frame_of(tokenizer, None).end
        ends = [] if end is None else [end]
        return Checkpoint(_new_model(run, tokenizer.vocab_size), tokenizer, {END_IDS: ends})
    model = start.model
    if run.training.chat_template:
        model = widened(model, tokenizer.vocab_size)
    elif tokenizer.vocab_size > start.config.vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size} ids and the model only {start.config.vocab_size}",
            "choose the tokenizer that the model was trained with",
        )
    origin = start.origin if resume else {"started_from": start.origin}
    return Checkpoint(model, tokenizer, start.generation, origin)


def _new_model(run: RunConfig, vocab_size: int) -> Transformer:
    config = run.model_config(vocab_size)
    try:
        return Transformer(config)
    except (RuntimeError, MemoryError) as error:  # PyTorch's allocator raises RuntimeError
        with torch.device("meta"):
            size = 4 * parameters(Transformer(config))
        raise ConfigError(
            f"the weights of this model take {size / 1e9:.1f} GB, more than this machine gives",
            "choose a smaller --width, --num-layers or --vocab-size",
        ) from error


def parameters(model: Transformer) -> int:
    """Number of weights; a tied head counts once."""
    return sum(weight.numel() for weight in model.parameters())


def trained(model: nn.Module) -> int:
    """Number of weights that are trained."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def _finish(trainer: Trainer) -> Outcome:
    """Measure the best checkpoint thoroughly, write that into it, draw the curve, and let it speak."""
    folder, config, step = trainer.folder, trainer.config, trainer.position.step
    trainer.world.wait()
    best = load_checkpoint(folder.best)
    measure = trainer.measure(_FINAL_FACTOR * config.val_tokens, best)
    if not trainer.world.writes:
        return Outcome(True, step, False, measure)
    best.origin["training"] |= measure.to_dict()
    save_checkpoint(best, folder.best)
    plot(folder.path)
    if best.held_out and not config.sample_prompt:
        question, answer = ask(best, best.held_out[0])
        sample = f"{question}\n{answer}"
    else:
        sample = sample_text(best, config.sample_prompt)
    write_file(folder.path / SAMPLE, sample)
    return Outcome(True, step, True, measure, sample)


def sample_text(checkpoint: Checkpoint, prompt: str, length: int = 120) -> str:
    """What the model makes of `prompt` at temperature 0.7, the prompt included."""
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        return ""
    frame = frame_of(tokenizer, checkpoint)
    ids = [] if frame.begin is None else [frame.begin]
    ids = ids + tokenizer.encode(prompt) or [frame.end or 0]
    ends = checkpoint.generation.get(END_IDS, [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContextWarning)  # a sample may well be longer than a small context
        made = generate(checkpoint.model, ids, end_ids=ends, max_new_tokens=length, temperature=0.7, seed=0)
    # A vocabulary padded beyond the tokenizer can be sampled from a model that has not learned better.
    return prompt + tokenizer.decode([i for i in made if i < tokenizer.vocab_size], skip_special=True)
