"""Models with a tower that Quire lacks: their text alone, against Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from quire import LLM, SamplingParams
from tests.golden.tiny_models import save_byte_tokenizer

TEXT: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "head_dim": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
TOWER = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "patch_size": 8,
    "image_size": 32, "num_hidden_layers": 1,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vipllava": (
        "VipLlava",
        {
            "text_config": TEXT | {"model_type": "llama"},
            "vision_config": TOWER | {"model_type": "clip_vision_model"},
        },
    ),
    "voxtral": (
        "Voxtral",
        {
            "text_config": TEXT | {"model_type": "llama"},
            "audio_config": {
                "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                "intermediate_size": 64,
            },
        },
    ),
}  # fmt: skip
PROMPT = [5, 6, 7, 8, 9, 33, 12, 50, 60, 7, 7, 20, 21, 22]
NEW = 12
FEW = ("vipllava",)


@pytest.mark.parametrize(
    "kind", [k if k in FEW else pytest.param(k, marks=pytest.mark.slow) for k in MODELS]
)
def test_text_alone(kind: str, tmp_path: Path) -> None:
    name, config = MODELS[kind]
    torch.manual_seed(0)
    configured = getattr(transformers, f"{name}Config")(**config)
    oracle = getattr(transformers, f"{name}ForConditionalGeneration")(configured).eval()
    with torch.no_grad():
        for parameter in oracle.parameters():
            noise = 0.1 * torch.randn_like(parameter)
            parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
    oracle.save_pretrained(tmp_path)
    save_byte_tokenizer(tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True, logprobs=1)
    limits = {"num_gpu_blocks_override": 16, "max_num_seqs": 2, "num_threads": 1}
    with LLM(str(tmp_path), **limits, limit_mm_per_prompt={"image": 0}) as llm:
        [output] = llm.generate({"prompt_token_ids": PROMPT}, params, use_tqdm=False)
        assert any("reads the text model alone" in note for note in llm.resolved.notes)
    answer = output.outputs[0]
    with torch.no_grad():
        logits = oracle(input_ids=torch.tensor([PROMPT + answer.token_ids])).logits[0]
    expected = logits.float().log_softmax(-1)[len(PROMPT) - 1 : -1]
    assert expected.argmax(-1).tolist() == answer.token_ids
    found = [
        each[token].logprob for each, token in zip(answer.logprobs, answer.token_ids, strict=True)
    ]
    torch.testing.assert_close(torch.tensor(found), expected.max(-1).values, atol=1e-4, rtol=0)
