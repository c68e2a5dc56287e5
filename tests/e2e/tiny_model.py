"""A Llama of 60,000 random weights with a tokenizer of bytes, written where a test wants it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 258
BOS, EOS = "<|begin|>", "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def write_tiny_model(folder: Path, **config: Any) -> Path:
    """Write config, weights and tokenizer into `folder`; `config` replaces fields of its config."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tiny_weights(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    special = {"bos_token": BOS, "eos_token": EOS, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


def tiny_weights() -> dict[str, np.ndarray]:
    """The tensors by their Hugging Face names; large enough to tell prompts apart."""
    random = np.random.default_rng(0)
    hidden, middle, kv = CONFIG["hidden_size"], CONFIG["intermediate_size"], 2 * 16

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * 0.3).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(VOCAB_SIZE, hidden),
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": matrix(VOCAB_SIZE, hidden),
    }
    for layer in range(CONFIG["num_hidden_layers"]):
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (middle, hidden),
            "mlp.up_proj": (middle, hidden),
            "mlp.down_proj": (hidden, middle),
        }
        base = f"model.layers.{layer}"
        weights |= {f"{base}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{base}.{norm}.weight"] = np.ones(hidden, np.float32)
    return weights


def byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in (BOS, EOS)])
    return tokenizer
