"""One config.json in Transformers and in Quire: the same tokens and log-probabilities, or why not.

Transformers loads the very folder that Quire does. Its answer in float64 is the truth. Quire, in
the case's dtype, may be off by a few times as much as Transformers is in that dtype, or in float64
with weights that are off by a rounding to it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from quire import LLM, SamplingParams
from quire.core.errors import QuireError
from quire.models.registry import model_config
from tests.golden.tiny_encoders import wordpiece
from tests.golden.tiny_models import ONE_PLUS
from tests.truth.choices import ARCHITECTURES, Case
from tests.truth.keys import VOCAB_SIZE
from tests.truth.routing import first_near_tie

PROMPT_LEN, NUM_TOKENS = 26, 8
MOVES, MORE_MOVES = 4, 64
"""Moves of the weights by a rounding; more, before an answer counts as wrong. The effect of a move
has a long tail where attention is nearly a maximum: with seed 37, case 421 (before Gemma 4 was
added), the largest of 64 is five times the median, and 4 had missed it."""
RATIO = 4.0
"""Both programs round to one dtype in different places, so that their errors are of one size."""
FLOORS = {"float32": 2**-17, "bfloat16": 2**-5}
"""Allowed in any case, relative to the largest number: answers of few numbers may be right by
chance. Eight roundings of bfloat16, 128 of float32; a wrong config changes logits by far more."""

CLEAR = 6.0
"""Log-odds beyond which a class counts as chosen, or not: float32 has few numbers close to 1."""

AUTO = {
    "generate": AutoModelForCausalLM,
    "classify": AutoModelForSequenceClassification,
    "embed": AutoModel,
}


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        verdict: "same"; "refused" by Quire, by name; "no oracle", because Transformers refuses;
            "warned", a difference of which Quire warned; "near tie", a difference that begins
            where rounding decides between two experts (`tests.truth.routing`); "different" and
            "crashed" are failures.
        why: the reason, short enough to count.
    """

    verdict: str
    why: str = ""

    @property
    def failed(self) -> bool:
        return self.verdict in ("different", "crashed")


class Warnings(logging.Handler):
    """Keeps what Quire says of a config while it parses it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("quire.models"):
            self.said.append(record.getMessage())

    def __enter__(self) -> Warnings:
        logging.getLogger("quire").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("quire").removeHandler(self)


def run(case: Case, folder: Path) -> Outcome:
    """Compute a case in both programs."""
    (folder / "config.json").write_text(json.dumps(case.config))
    try:
        model_config(case.config)
    except QuireError as error:
        return Outcome("refused", _reason(error))
    except Exception as error:
        return Outcome("crashed", repr(error))
    try:
        models = _transformers(case, folder)
    except Exception as error:  # Transformers has many ways to refuse a config
        return Outcome("no oracle", f"{type(error).__name__}: {error}".splitlines()[0][:70])
    wordpiece().save_pretrained(folder)
    with Warnings() as warnings:
        try:
            outcome = _compare(case, folder, *models)
        except QuireError as error:
            return Outcome("refused", _reason(error))
        except Exception as error:
            return Outcome("crashed", repr(error))
    if outcome.failed and warnings.said:
        return Outcome("warned", outcome.why)
    return outcome


def _reason(error: QuireError) -> str:
    return error.param or str(error)[:70]


def _transformers(case: Case, folder: Path) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The model in float64, and in the case's dtype, of weights that are saved into `folder`."""
    auto = AUTO[case.task]
    config = AutoConfig.from_pretrained(folder)
    made = auto.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(case.weights_seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                is_scale = name.endswith("weight")
                center = 1.0 if is_scale and case.kind not in ONE_PLUS else 0.0
                parameter.copy_(center + 0.2 * noise)
            else:
                parameter.copy_(noise * 1.5 * min(parameter.shape) ** -0.5)
    made.to(getattr(torch, case.dtype)).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").write_text(json.dumps(case.config))  # as it was, not normalized
    exact, rounded = (
        # Its fast products of experts have no float64.
        auto.from_pretrained(folder, dtype=dtype, experts_implementation="eager").eval()
        for dtype in (torch.float64, getattr(torch, case.dtype))
    )
    _check_loaded(made, exact)
    with torch.inference_mode():
        # Which refuses some configs.
        steps = {} if ARCHITECTURES[case.kind].steps else {"use_cache": False}
        exact(torch.tensor([[5, 6]]), **steps)
    return exact, rounded


def _check_loaded(made: PreTrainedModel, loaded: PreTrainedModel) -> None:
    ours, theirs = made.double().state_dict(), loaded.state_dict()
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), f"Transformers did not load {name}"


def _compare(case: Case, folder: Path, exact: PreTrainedModel, rounded: PreTrainedModel) -> Outcome:
    generator = torch.Generator().manual_seed(case.weights_seed)
    prompt = torch.randint(5, VOCAB_SIZE, (PROMPT_LEN,), generator=generator).tolist()
    flags: dict[str, Any] = {"dtype": case.dtype, "num_threads": 1, "max_num_seqs": 2}
    with LLM(str(folder), **flags) as llm, torch.inference_mode():
        if case.task == "generate":
            return _generates(case, llm, prompt, exact, rounded)
        # Many: the roundings of a few scores say little of their size.
        more = torch.randint(5, VOCAB_SIZE, (15, PROMPT_LEN), generator=generator).tolist()
        prompts, ids = [prompt, *more], torch.tensor([prompt, *more])
        if case.task == "classify":
            answers = llm.classify(prompts, use_tqdm=False)
            found = np.array([answer.outputs.probs for answer in answers])
            # One by one: without a padding token Transformers refuses several.
            logits = [
                torch.cat([model(row[None]).logits for row in ids]).double()
                for model in _each(exact, rounded, case)
            ]
            expected, *near = (_scores(exact.config, each).numpy() for each in logits)
            if exact.config.problem_type != "regression":
                # Rounding moves scores; how far a probability follows depends on where it is.
                allowed = _allowed(case, expected, near)
                clear = np.clip(expected, -CLEAR, CLEAR)
                error = np.abs(np.clip(_log_odds(found), -CLEAR, CLEAR) - clear).max()
                return _off(error, allowed) if error > allowed else Outcome("same")
        else:
            pooled = llm.embed(prompts, use_tqdm=False)
            found = np.array([each.outputs.embedding for each in pooled])
            states = [
                model(ids).last_hidden_state[:, 0].double() for model in _each(exact, rounded, case)
            ]
            expected, *near = ((s / s.norm(dim=-1, keepdim=True)).numpy() for s in states)
    if found.shape != expected.shape:
        return Outcome("different", f"shape {found.shape}, not {expected.shape}")
    error, allowed = np.abs(found - expected).max(), _allowed(case, expected, near)
    return _off(error, allowed) if error > allowed else Outcome("same")


def _scores(config: Any, logits: torch.Tensor) -> torch.Tensor:
    """The log-odds of each class, as Transformers' text-classification pipeline has them from
    logits; of a regression, its values."""
    one_each = config.problem_type in ("regression", "multi_label_classification")
    if one_each or config.num_labels == 1:
        return logits
    others = logits[:, None].expand(-1, config.num_labels, -1).clone()
    others.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    return logits - others.logsumexp(-1)


def _log_odds(probabilities: Any) -> Any:
    wide = probabilities.astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.log(wide) - np.log1p(-wide)


def _generates(
    case: Case, llm: LLM, prompt: list[int], exact: PreTrainedModel, rounded: PreTrainedModel
) -> Outcome:
    """Compare the prompt's log-probabilities, then each greedy token and its own."""
    params = SamplingParams(
        temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0, prompt_logprobs=0
    )
    [answer] = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
    [completion] = answer.outputs
    tokens = list(completion.token_ids)
    told = prompt[1:] + tokens
    given = [*(answer.prompt_logprobs or [])[1:], *(completion.logprobs or [])]
    found = np.array([each[token].logprob for each, token in zip(given, told, strict=True) if each])
    for moves in (MOVES, MORE_MOVES):
        each = _each(exact, rounded, case, moves)
        steps = ARCHITECTURES[case.kind].steps
        rows = [_log_probabilities(model, prompt, tokens, steps) for model in each]
        expected, *near = (row.gather(1, torch.tensor(told)[:, None])[:, 0].numpy() for row in rows)
        errors, allowed = np.abs(found - expected), _allowed(case, expected, near)
        short = rows[0].max(dim=1).values.numpy() - expected
        short[: len(prompt) - 1] = 0.0  # the prompt's own tokens
        wrong = (errors > allowed) | (short > 2 * allowed)
        if not wrong.any():
            return Outcome("same")
    tie = first_near_tie(exact, rounded, prompt + tokens[:-1])
    if tie is not None and tie <= int(wrong.argmax()):
        return Outcome("near tie", "rounding decides between two experts")
    if errors.max() > allowed:
        return _off(errors.max(), allowed)
    return Outcome("different", f"a greedy token is {short.max():.1e} below the best")


def _log_probabilities(
    model: PreTrainedModel, prompt: list[int], tokens: list[int], steps: bool
) -> torch.Tensor:
    """float64 [prompt + tokens - 1, vocab]: the prompt at once, then one token after another; all
    at once without `steps`."""
    if not steps:
        whole = model(torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits[0]
        return whole.double().log_softmax(-1)
    out = model(torch.tensor([prompt]), use_cache=True)
    rows, cache = [out.logits[0]], out.past_key_values
    for token in tokens[:-1]:
        out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        rows.append(out.logits[0])
    return torch.cat(rows).double().log_softmax(-1)


def _off(error: float, allowed: float) -> Outcome:
    return Outcome("different", f"off by {error:.1e}, allowed {allowed:.1e}")


def _each(
    exact: PreTrainedModel, rounded: PreTrainedModel, case: Case, moves: int = MOVES
) -> Iterator[PreTrainedModel]:
    """Yield both, then `exact` with weights off by up to half a unit of the case's dtype, `moves`
    times.

    One rounding may leave an answer unchanged by chance; several say how far rounding moves it.
    """
    yield exact
    yield rounded
    half = torch.finfo(getattr(torch, case.dtype)).eps / 2
    generator = torch.Generator().manual_seed(case.weights_seed)
    kept = [parameter.clone() for parameter in exact.parameters()]
    for _ in range(moves):
        for parameter, weight in zip(exact.parameters(), kept, strict=True):
            off = torch.rand(weight.shape, generator=generator, dtype=torch.float64) * 2 - 1
            parameter.copy_(weight * (1 + half * off))
        yield exact
    for parameter, weight in zip(exact.parameters(), kept, strict=True):
        parameter.copy_(weight)


def _allowed(case: Case, expected: Any, near: list[Any]) -> float:
    own = max(float(np.abs(each - expected).max()) for each in near)
    largest = float(np.abs(expected).max())
    return RATIO * own + FLOORS[case.dtype] * max(largest, 0.1)
