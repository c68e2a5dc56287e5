"""Both front ends over the real core and a real model."""

import asyncio
import time
from pathlib import Path

import pytest

from quire.core.outputs import RequestOutput
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.frontend.async_llm import AsyncLLM
from quire.frontend.llm import LLM
from quire.resolve.arguments import EngineArgs

PROMPTS = ["Once upon a time", "The dog", "Lily was sad because", "One day"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)


@pytest.fixture(scope="module")
def model(shared_dir: Path) -> str:
    return str(shared_dir / "models" / "tinystories-656k")


async def stream(engine: AsyncLLM, prompt: str, params: SamplingParams) -> list[RequestOutput]:
    return [output async for output in engine.generate(prompt, params)]


async def test_both_front_ends_agree(model: str) -> None:
    with LLM(model) as llm:
        offline = [o.outputs[0] for o in llm.generate(PROMPTS, GREEDY)]
        assert list(llm.phases)[:3] == ["resolve", "tokenizer", "import_engine"]
    began = time.monotonic()
    engine = await AsyncLLM.start(EngineArgs(model=model))
    try:
        assert list(engine.phases)[:3] == ["resolve", "spawn", "import_engine"]
        assert 0 < sum(engine.phases.values()) <= time.monotonic() - began
        assert engine.beside["front_end"] >= engine.beside["tokenizer"] > 0
        deltas = GREEDY.replace(output_kind=RequestOutputKind.DELTA)
        streamed = await asyncio.gather(*(stream(engine, p, deltas) for p in PROMPTS))
    finally:
        engine.shutdown()
    for whole, parts in zip(offline, streamed, strict=True):
        assert "".join(part.outputs[0].text for part in parts) == whole.text
        assert [t for part in parts for t in part.outputs[0].token_ids] == whole.token_ids
        assert whole.finish_reason == "length"


def test_seeds_n_and_stop(model: str) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=60, stop=".")
    with LLM(model) as llm:
        [first] = llm.generate(PROMPTS[0], params)
        again, *_ = llm.generate(PROMPTS, params)
    assert [c.text for c in first.outputs] == [c.text for c in again.outputs]
    assert len({c.text for c in first.outputs}) == 3
    assert all("." not in c.text for c in first.outputs)


def test_bad_words_and_bias(model: str) -> None:
    with LLM(model) as llm:
        [plain] = llm.generate(PROMPTS[0], GREEDY)
        first = plain.outputs[0].token_ids[0]
        word = llm.get_tokenizer().decode([first])
        [without] = llm.generate(PROMPTS[0], GREEDY.replace(bad_words=[word]))
        [biased] = llm.generate(PROMPTS[0], GREEDY.replace(logit_bias={70: 100.0}))
    assert first not in without.outputs[0].token_ids
    assert biased.outputs[0].token_ids == [70] * 40
