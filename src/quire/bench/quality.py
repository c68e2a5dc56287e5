"""`quire bench quality`: perplexity and divergence of each dtype and quantization."""

from __future__ import annotations

import argparse
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.bench import choices
from quire.bench.machine import portable_name
from quire.bench.progress import progress
from quire.bench.results.report import Row
from quire.core.errors import ConfigError
from quire.core.sampling_params import MAX_LOGPROBS, SamplingParams
from quire.resolve.arguments import EngineArgs
from quire.system.records import dataclass
from quire.text.files import read_text, split_documents

if TYPE_CHECKING:
    from quire.frontend.llm import LLM

STORIES = Path(__file__).with_name("stories.txt")
"""Stories by the generator of the embedded model's training text, held out from training."""
WINDOW = 512
"""Tokens per prediction window of a document."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A model's prediction at each position of a text.

    Attributes:
        losses: float64 [positions], -log p of the text's token.
        likeliest: per position, the likeliest tokens with their log-probabilities.
    """

    losses: NDArray[np.float64]
    likeliest: list[dict[int, float]]

    @property
    def perplexity(self) -> float:
        return math.exp(float(self.losses.mean()))

    def divergence_from(self, original: Prediction) -> float:
        """Return the mean KL(original || this) in nats.

        All tokens outside the common part of both lists count as one. By the data processing
        inequality this is a lower bound. It is tight if the lists hold nearly all probability.
        """
        pairs = zip(original.likeliest, self.likeliest, strict=True)
        return sum(_divergence(p, q) for p, q in pairs) / len(self.likeliest)

    def agreement_with(self, original: Prediction) -> float:
        """Return the share of positions where both have the same likeliest token."""
        pairs = zip(original.likeliest, self.likeliest, strict=True)
        same = sum(max(p, key=p.__getitem__) == max(q, key=q.__getitem__) for p, q in pairs)
        return same / len(self.likeliest)


def run(args: argparse.Namespace) -> list[Row]:
    """Return one row per combination, compared with `--original`, or with the first combination of
    its model."""
    documents = read_documents(args.text or STORIES)
    fields = {name: getattr(args, name) for name in choices.CHOICES}
    groups = [
        [
            engine_args
            for engine_args, _ in choices.combinations(
                {"model": model, "num_threads": args.num_threads}, fields
            )
        ]
        for model in args.model
    ]
    if args.original is not None:
        original = EngineArgs(model=args.original, num_threads=args.num_threads)
        groups = [[original, *itertools.chain.from_iterable(groups)]]
    with quiet(), progress(total=sum(map(len, groups)), unit="model") as bar:
        return [row for group in groups for row in compared(group, documents, bar.update)]


def compared(
    jobs: Sequence[EngineArgs], documents: Sequence[str], advance: Callable[[], object]
) -> list[Row]:
    """Return one row per engine, compared with the first; call `advance` after each."""
    rows: list[Row] = []
    original: Prediction | None = None
    for args in jobs:
        found, facts = predict(args, documents)
        original = original or found
        rows.append(
            {
                "model": portable_name(args.model),
                **{name: getattr(args, name) for name in choices.CHOICES},
                **facts,
                "perplexity": found.perplexity,
                "drift": found.perplexity / original.perplexity - 1.0,
                "kl_divergence": found.divergence_from(original),
                "top1_agreement": found.agreement_with(original),
            }
        )
        advance()
    return rows


@contextmanager
def quiet() -> Iterator[None]:
    """Log only warnings, because dozens of engines would each explain their choices."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)


def read_documents(path: Path) -> list[str]:
    """Return the documents of a text file, separated by lines of `---`.

    Raises:
        ConfigError: the file cannot be read as UTF-8, or is empty.
    """
    found = [
        part.strip() for part in split_documents(read_text(path, f"--text {path}", param="--text"))
    ]
    if not found:
        raise ConfigError(f"--text {path} is empty.", param="--text")
    return found


def predict(args: EngineArgs, documents: Sequence[str]) -> tuple[Prediction, Row]:
    """Return an engine's prediction of `documents`, and facts about the engine."""
    from quire.frontend.llm import LLM

    with LLM(**asdict(args)) as llm:
        facts = {
            "isa": llm.facts.get("isa"),
            "weight_bytes": llm.facts["weight_bytes"],
            "kv_bytes_per_token": llm.facts["kv_bytes_per_token"],
        }
        prompts = [w for d in documents for w in windows(llm, d)]
        found = prompt_predictions(llm, prompts)
    return found, facts | {"tokens": len(found.losses)}


def windows(llm: LLM, document: str) -> list[list[int]]:
    """Return the document's tokens in windows of at most `WINDOW` and the model's length."""
    length = min(WINDOW, llm.resolved.config.scheduler.max_model_len - 1)
    ids = llm.get_tokenizer().encode(document)
    pieces = [ids[start : start + length] for start in range(0, len(ids), length)]
    return [piece for piece in pieces if len(piece) > 1]


def prompt_predictions(llm: LLM, prompts: Sequence[list[int]]) -> Prediction:
    """Predict prompts as ordinary requests: paged, batched, on the engine's kernels."""
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=MAX_LOGPROBS)
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    losses: list[float] = []
    likeliest: list[dict[int, float]] = []
    for output in outputs:
        assert output.prompt_logprobs is not None
        positions = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        for token, position in positions:
            assert position is not None
            losses.append(-position[token].logprob)
            likeliest.append({t: p.logprob for t, p in position.items()})
    return Prediction(np.array(losses), likeliest)


def _divergence(p: dict[int, float], q: dict[int, float]) -> float:
    """Return KL(p || q) over the tokens that both list, with all others as one."""
    both = p.keys() & q.keys()
    rest_p = max(0.0, 1.0 - sum(math.exp(p[t]) for t in both))
    rest_q = max(0.0, 1.0 - sum(math.exp(q[t]) for t in both))
    listed = sum(math.exp(p[t]) * (p[t] - q[t]) for t in both)
    floor = 1e-12  # below the resolution of float32 logits
    return listed + (rest_p * math.log(rest_p / max(rest_q, floor)) if rest_p > floor else 0.0)
