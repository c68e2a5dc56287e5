"""`LLM.beam_search` finds what Transformers does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import quire
from quire import LLM, BeamSearchParams
from quire.core.errors import InvalidRequestError

STORY = Path(quire.__file__).parent / "assets" / "story"
PROMPTS = ["Once upon a time", "The fox saw"]


def test_as_transformers() -> None:
    model = AutoModelForCausalLM.from_pretrained(STORY, dtype=torch.float32)
    with LLM("embedded", dtype="float32", max_num_seqs=8) as llm:
        params = BeamSearchParams(beam_width=4, max_tokens=12, ignore_eos=True, length_penalty=0.0)
        outputs = llm.beam_search(PROMPTS, params)
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            ids = torch.tensor([llm.get_tokenizer().encode(prompt)])
            expected = model.generate(
                ids, attention_mask=torch.ones_like(ids), num_beams=4, num_return_sequences=4,
                max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0,
                length_penalty=0.0, output_scores=True, return_dict_in_generate=True,
            )  # fmt: skip
            assert [s.tokens for s in output.sequences] == expected.sequences.tolist()
            scores = [s.cum_logprob for s in output.sequences]
            assert scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-4)
            assert all(s.finish_reason == "length" for s in output.sequences)
            assert all((s.text or "").startswith(prompt) for s in output.sequences)
        [one] = llm.beam_search(PROMPTS[0], BeamSearchParams(beam_width=1, max_tokens=3))
        assert len(one.sequences) == 1
        with pytest.raises(InvalidRequestError, match="max_tokens"):
            llm.beam_search(PROMPTS[0], BeamSearchParams(beam_width=1, max_tokens=10**6))
