"""Trains the story model and, on its predictions, the draft model.

Run ``python -m tools.story_model.train --out src/quire/assets``. The defaults are the run
that made the shipped files; figures are in README.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from tools.story_model.data import BOS, Rows, pack, token_id, train_tokenizer
from tools.story_model.export import export
from tools.story_model.grammar import Mix
from tools.story_model.model import ModelSpec, StoryLlama, count

MAIN = ModelSpec(vocab=3072, dim=256, layers=6, heads=4, kv_heads=2, ffn=704)
DRAFT = ModelSpec(vocab=3072, dim=128, layers=2, heads=2, kv_heads=1, ffn=384)

IGNORE = -100

# The lower plateau of the learning rate.
LOW = 0.45

# What the stories of the last parts, and the held-out ones, are like.
LAST = Mix(tiny=0.1, gendered=True, pronouns=True)


@dataclass(frozen=True)
class Options:
    out: Path
    seed: int
    steps: int
    tiny_steps: int
    mix_from: int
    gender_from: int
    pronouns_from: int
    pronouns_to: int
    long_steps: int
    batch_tokens: int
    lr: float
    warmup: int
    hold: int
    fade: int
    weight_decay: float
    log_every: int
    save_every: int
    state: Path | None
    compile: bool


def parse() -> Options:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for story/, story-draft/")
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--steps", type=int, default=2280)
    parser.add_argument("--tiny-steps", type=int, default=250, help="first steps, rows of 128")
    parser.add_argument("--mix-from", type=int, default=600, help="more tiny stories again")
    parser.add_argument("--gender-from", type=int, default=1700, help="names tell the gender")
    parser.add_argument("--pronouns-from", type=int, default=1850, help="many pronouns")
    parser.add_argument("--pronouns-to", type=int, default=2090)
    parser.add_argument("--long-steps", type=int, default=40, help="last steps, rows of 1024")
    parser.add_argument("--batch-tokens", type=int, default=5120)
    parser.add_argument("--lr", type=float, default=5e-3, help="for Muon; AdamW uses 0.6 of it")
    parser.add_argument("--warmup", type=int, default=60)
    parser.add_argument("--hold", type=int, default=1150, help="when the learning rate first falls")
    parser.add_argument("--fade", type=int, default=430, help="last steps, in which it ends")
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=0, help="also export every so many steps")
    parser.add_argument("--state", type=Path, help="file to save to and to resume from")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    return Options(**vars(parser.parse_args()))


def batch_of(
    rows: Rows, index: slice, bos: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets and the mask that keeps each document to itself."""
    ids = torch.from_numpy(rows.ids[index].astype(np.int64)).to(device)
    learn = torch.from_numpy(rows.learn[index]).to(device)
    targets = torch.where(learn, ids, IGNORE)[:, 1:]
    ids = ids[:, :-1]
    document = (ids == bos).cumsum(dim=1)
    same = document[:, :, None] == document[:, None, :]
    return ids, targets.contiguous(), same.tril()[:, None]


class Pair(nn.Module):
    """Both models in one step: the draft learns from the data and from the main model."""

    def __init__(self, main: StoryLlama, draft: StoryLlama) -> None:
        super().__init__()
        self.main, self.draft = main, draft

    def forward(self, ids: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        device = ids.device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            main = self.main(ids, mask).float().flatten(0, 1)
            draft = self.draft(ids, mask).float().flatten(0, 1)
        flat = targets.flatten()
        main_loss = F.cross_entropy(main, flat, ignore_index=IGNORE)
        draft_loss = F.cross_entropy(draft, flat, ignore_index=IGNORE)
        teacher = main.detach().softmax(dim=-1)
        soft = -(teacher * draft.log_softmax(dim=-1)).sum(dim=-1)
        known = (flat != IGNORE).float()
        distill = (soft * known).sum() / known.sum()
        return main_loss, draft_loss, distill


def optimizers(model: nn.Module, options: Options) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for embeddings and norms."""
    inner: list[nn.Parameter] = []
    outer: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        (inner if weight.ndim == 2 and "embed" not in name else outer).append(weight)
    return [
        torch.optim.Muon(
            inner,
            lr=options.lr,
            weight_decay=options.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(outer, lr=0.6 * options.lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def pace(step: int, options: Options) -> float:
    """Warm-up, a plateau, a slope to a lower plateau, and a fade to nothing.

    Only the fade depends on the number of steps, so a longer run can start from the state
    of a shorter one and is still the same run.
    """
    warm = (step + 1) / options.warmup
    slope = max(1.0 - (step - options.hold) / 850, LOW)
    fade = LOW * (options.steps - step) / options.fade
    return min(1.0, warm, slope, fade)


def parts(options: Options) -> tuple[tuple[int, int, Mix], ...]:
    """Where each part ends, the length of its rows and what its stories are like.

    In tiny stories names are dense, and the model learns to copy them there; rows of 640 pack
    well; the last rows have room for the longest conversations.
    """
    return (
        (options.tiny_steps, 128, Mix(tiny=1.0)),
        (options.mix_from, 640, Mix()),
        (options.gender_from, 640, Mix(tiny=0.5)),
        (options.pronouns_from, 640, Mix(tiny=0.1, gendered=True)),
        (options.pronouns_to, 640, Mix(tiny=0.75, gendered=True, pronouns=True)),
        (options.steps - options.long_steps, 640, LAST),
        (options.steps, 1024, LAST),
    )


def batches(
    tokenizer: Tokenizer, options: Options, device: torch.device, first: int
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    bos = token_id(tokenizer, BOS)
    start = 0
    for number, (stop, length, mix) in enumerate(parts(options), start=1):
        size = options.batch_tokens // length
        if stop > first:
            needed = size * (stop - start)
            seed = options.seed + number
            rows = pack(tokenizer, seed, needed, length, held_out=False, mix=mix)
            for step in range(max(first, start), stop):
                at = (step - start) * size
                yield step, *batch_of(rows, slice(at, at + size), bos, device)
        start = stop


def train(options: Options) -> None:
    start = time.perf_counter()
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = train_tokenizer(options.seed, 20_000, MAIN.vocab)
    pair = Pair(StoryLlama(MAIN), StoryLlama(DRAFT)).to(device)
    print(f"main {count(pair.main):,} draft {count(pair.draft):,} parameters on {device}")
    steppers = optimizers(pair, options)
    # One graph for each row length: graphs for any length are slower.
    run = torch.compile(pair, dynamic=False) if options.compile else pair
    first = seen = learned = 0
    if options.state and options.state.exists():
        saved = torch.load(options.state, map_location=device)
        pair.load_state_dict(saved["pair"])
        for stepper, value in zip(steppers, saved["steppers"], strict=True):
            stepper.load_state_dict(value)
        first, seen, learned = saved["first"], saved["seen"], saved["learned"]
    for step, ids, targets, mask in batches(tokenizer, options, device, first):
        for group in (group for stepper in steppers for group in stepper.param_groups):
            group["lr"] = group.setdefault("peak", group["lr"]) * pace(step, options)
        main_loss, draft_loss, distill = run(ids, targets, mask)
        (main_loss + 0.3 * draft_loss + 0.7 * distill).backward()
        nn.utils.clip_grad_norm_(pair.main.parameters(), 1.0)
        nn.utils.clip_grad_norm_(pair.draft.parameters(), 1.0)
        for stepper in steppers:
            stepper.step()
            stepper.zero_grad(set_to_none=True)
        seen += ids.numel()
        learned += int((targets != IGNORE).sum())
        if step % options.log_every == 0 or step == options.steps - 1:
            log = {
                "step": step,
                "main": round(main_loss.item(), 4),
                "draft": round(draft_loss.item(), 4),
                "seconds": round(time.perf_counter() - start, 1),
                "tokens": seen,
                "learned": learned,
            }
            print(json.dumps(log), flush=True)
        last = step == options.steps - 1
        save = options.save_every and (step + 1) % options.save_every == 0
        if save and options.state:
            state = {
                "pair": pair.state_dict(),
                "steppers": [stepper.state_dict() for stepper in steppers],
                "first": step + 1,
                "seen": seen,
                "learned": learned,
            }
            torch.save(state, options.state.with_suffix(".part"))
            options.state.with_suffix(".part").rename(options.state)
        if last or save:
            export(pair.main, tokenizer, options.out / "story")
            export(pair.draft, tokenizer, options.out / "story-draft")


if __name__ == "__main__":
    train(parse())
