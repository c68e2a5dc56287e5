"""GGUF's architectures: one row for each. `models.weights.gguf_names` has the names of tensors."""

from __future__ import annotations

from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """What an architecture is for Hugging Face, and how its tensors are stored.

    Attributes:
        model_type: Hugging Face's for the architecture.
        interleaved: whether q and k are stored for interleaved RoPE.
        norms_plus_one: whether norms are stored as 1 + weight.
        recurrent: whether there are recurrent layers.
    """

    model_type: str
    interleaved: bool = False
    norms_plus_one: bool = False
    recurrent: bool = False


NAMES: dict[str, Names] = {
    "llama": Names("llama", interleaved=True),
    "mistral": Names("mistral"),
    "olmoe": Names("olmoe"),
    "qwen2": Names("qwen2"),
    "qwen2moe": Names("qwen2_moe"),
    "qwen3": Names("qwen3"),
    "qwen3moe": Names("qwen3_moe"),
    "gpt2": Names("gpt2"),
    "phi3": Names("phi3"),
    "gemma": Names("gemma", norms_plus_one=True),
    "gemma2": Names("gemma2", norms_plus_one=True),
    "gemma3": Names("gemma3_text", norms_plus_one=True),
    "gemma4": Names("gemma4_text"),
    "olmo2": Names("olmo2"),
    "stablelm": Names("stablelm"),
    "starcoder2": Names("starcoder2"),
    "smollm3": Names("smollm3", interleaved=True),
    "granite": Names("granite", interleaved=True),
    "seed_oss": Names("seed_oss"),
    "glm4": Names("glm4"),
    "exaone4": Names("exaone4"),
    "command-r": Names("cohere"),
    "cohere2": Names("cohere2"),
    "ernie4_5": Names("ernie4_5"),
    "nemotron": Names("nemotron", norms_plus_one=True),
    "arcee": Names("arcee", interleaved=True),
    "hunyuan-dense": Names("hunyuan_v1_dense"),
    "hunyuan-moe": Names("hunyuan_v1_moe"),
    "jais2": Names("jais2"),
    "mistral3": Names("ministral3", interleaved=True),
    "gpt-oss": Names("gpt_oss"),
    "glm4moe": Names("glm4_moe"),
    "ernie4_5-moe": Names("ernie4_5_moe"),
    "granitemoe": Names("granitemoe", interleaved=True),
    "llama4": Names("llama4_text"),
    "deepseek2": Names("deepseek_v3"),
    "minicpm3": Names("minicpm3"),
    "phimoe": Names("phimoe"),
    "bitnet": Names("bitnet"),
    "lfm2": Names("lfm2", recurrent=True),
    "lfm2moe": Names("lfm2_moe", recurrent=True),
    "mamba2": Names("mamba2", recurrent=True),
    "granitehybrid": Names("granitemoehybrid", interleaved=True, recurrent=True),
    "falcon-h1": Names("falcon_h1", recurrent=True),
    "nemotron_h": Names("nemotron_h", recurrent=True),
    "nemotron_h_moe": Names("nemotron_h", recurrent=True),
    "qwen35": Names("qwen3_5_text", norms_plus_one=True, recurrent=True),
    "qwen35moe": Names("qwen3_5_moe_text", norms_plus_one=True, recurrent=True),
    "qwen3next": Names("qwen3_next", norms_plus_one=True, recurrent=True),
    "kimi-linear": Names("kimi_linear", recurrent=True),
}
"""By GGUF's `general.architecture`."""

WIDEST_LAYERS = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose queries alone are scaled by hidden_size / heads, which files do
not say."""
