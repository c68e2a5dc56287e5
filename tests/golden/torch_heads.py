"""Draft heads in plain torch: small random ones, saved as published checkpoints are, and a loop
that drafts with them over a whole text, without a cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.glm4_moe import modeling_glm4_moe as glm
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from tests.golden.tiny_models import make_tiny, save_byte_tokenizer

LAYERS = 6
TAPS = (1, 3, 4)
DRAFT_VOCAB = 100
NORM_EPS = 1e-5


class Family(NamedTuple):
    """A kind of target, and the parts of its head."""

    form: str
    model: str
    layer: Callable[[Any, int], nn.Module]
    norm: Callable[..., nn.Module] = llama.LlamaRMSNorm
    rotary: Callable[[Any], nn.Module] = llama.LlamaRotaryEmbedding
    number: int = 0  # of a target's layer like the head's
    mean: float = 1.0  # of the weights of norms
    flags: Mapping[str, Any] = MappingProxyType({})


FAMILIES = {
    "nextn": Family(
        "nextn",
        "glm4-moe",
        glm.Glm4MoeDecoderLayer,
        rotary=glm.Glm4MoeRotaryEmbedding,
        number=LAYERS,
    ),
    "deepseek-v3": Family(
        "nextn",
        "deepseek-v3",
        deepseek.DeepseekV3DecoderLayer,
        rotary=deepseek.DeepseekV3RotaryEmbedding,
        number=LAYERS,
    ),
    "mtp": Family("mtp", "qwen3", qwen3.Qwen3DecoderLayer),
    "qwen3-next": Family(
        "mtp",
        "qwen3-next",
        qwen3_next.Qwen3NextDecoderLayer,
        qwen3_next.Qwen3NextRMSNorm,
        qwen3_next.Qwen3NextRotaryEmbedding,
        number=1,
        mean=0.0,
        # Of its few layers, the second has attention, and the first no experts.
        flags={"num_hidden_layers": 3, "mlp_only_layers": [0]},
    ),
    "qwen3.5-moe": Family(
        "mtp",
        "qwen3_5-moe",
        qwen3_5_moe.Qwen3_5MoeDecoderLayer,
        qwen3_5_moe.Qwen3_5MoeRMSNorm,
        qwen3_5_moe.Qwen3_5MoeTextRotaryEmbedding,
        number=1,
        mean=0.0,
        flags={"num_hidden_layers": 3},
    ),
    "eagle": Family("eagle", "llama", llama.LlamaDecoderLayer),
    "eagle3": Family("eagle3", "llama", llama.LlamaDecoderLayer),
}


@dataclass
class TorchHead:
    """One head on top of one target.

    Attributes:
        family: of the target.
        tensors: its own, as the checkpoint has them.
        target: a Transformers model.
        names: its tokens → the target's.
    """

    family: Family
    config: PretrainedConfig
    tensors: dict[str, Tensor]
    target: Any
    taps: Sequence[int] = ()
    names: Tensor | None = None
    normed_residual: bool = False
    _known: list[tuple[list[int], Tensor]] = field(default_factory=list)

    @property
    def form(self) -> str:
        return self.family.form

    def drafts(
        self, tokens: list[int], most: int, others: Mapping[int, int] | None = None
    ) -> tuple[list[int], list[Tensor]]:
        """Return the greedy drafts behind `tokens`, and the logits of each.

        Args:
            others: position → the token behind it that the head's keys and values there are of.
        """
        with torch.no_grad():
            return self._drafts(tokens, most, others or {})

    def _drafts(
        self, tokens: list[int], most: int, others: Mapping[int, int]
    ) -> tuple[list[int], list[Tensor]]:
        rows = self._target_rows(tokens)[:-1]
        ids, logits = list(tokens[1:]), []
        for position, token in others.items():
            ids[position] = token
        for _ in range(most):
            outputs, own = self._forward(torch.tensor(ids), rows)
            logits.append(self._logits(outputs[-1]))
            token = int(logits[-1].argmax())
            ids.append(token if self.names is None else int(self.names[token]))
            rows = torch.cat([rows, own[-1:]])
        return ids[len(tokens) - 1 :], logits

    def _target_rows(self, tokens: list[int]) -> Tensor:
        """Return a row per token: of a longer text that begins so, if there has been one."""
        for text, rows in self._known:
            if text[: len(tokens)] == tokens:
                return rows[: len(tokens)]
        found = self.target.model(torch.tensor([tokens]), output_hidden_states=True)
        rows = found.last_hidden_state[0]
        if self.taps:
            wide = torch.cat([found.hidden_states[tap][0] for tap in self.taps], dim=-1)
            rows = wide @ self.tensors["fc.weight"].T
        self._known.append((tokens, rows))
        return rows

    def _logits(self, row: Tensor) -> Tensor:
        if "lm_head.weight" in self.tensors:
            return self.tensors["lm_head.weight"] @ row
        return self.target.lm_head(row)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        norm = self.family.norm(x.shape[-1], self.config.rms_norm_eps)
        norm.weight.data = self._tensor(name)
        return norm(x)

    def _tensor(self, name: str) -> Tensor:
        prefix = {"nextn": f"model.layers.{LAYERS}.", "mtp": "mtp."}.get(self.form, "")
        return self.tensors[f"{prefix}{name}.weight"]

    def _forward(self, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return what logits are made of, and the rows for further drafts."""
        embeds = self.target.model.embed_tokens(ids)
        if self.form == "eagle3":
            return self._eagle3(embeds, rows)
        if self.form == "eagle":
            joined = torch.cat([embeds, rows], dim=-1) @ self._tensor("fc").T
            joined = joined + self.tensors["fc.bias"]
            out = self._layer(joined)
            return out, out
        enorm, hnorm, fuse, norm = {
            "nextn": ("enorm", "hnorm", "eh_proj", "shared_head.norm"),
            "mtp": ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"),
        }[self.form]
        both = torch.cat([self._norm(embeds, enorm), self._norm(rows, hnorm)], dim=-1)
        out = self._layer(both @ self._tensor(fuse).T)
        normed = self._norm(out, norm)
        return normed, normed if self.form == "mtp" else out

    @cached_property
    def _own_layer(self) -> Any:
        layer = new_layer(self.family, self.config)
        tensors = layer_tensors(self.form, self.tensors)
        layer.load_state_dict({n: t for n, t in tensors.items() if "hidden_norm" not in n})
        return layer

    def _layer(self, x: Tensor) -> Tensor:
        positions = torch.arange(len(x))[None]
        rotary = self.family.rotary(self.config)
        out = self._own_layer(
            x[None],
            attention_mask=causal(len(x)),
            position_ids=positions,
            position_embeddings=rotary(x[None], positions),
        )
        return (out[0] if isinstance(out, tuple) else out).reshape(x.shape)

    def _eagle3(self, embeds: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        layer = self._own_layer
        normed = self._norm(rows, "midlayer.hidden_norm")
        residual = normed if self.normed_residual else rows
        x = torch.cat([layer.input_layernorm(embeds), normed], dim=-1)
        positions = torch.arange(len(x))[None]
        cos_sin = llama.LlamaRotaryEmbedding(self.config)(x[None], positions)
        mixed, _ = layer.self_attn(x[None], cos_sin, causal(len(x)))
        residual = residual + mixed[0]
        out = residual + layer.mlp(layer.post_attention_layernorm(residual))
        return self._norm(out, "norm"), out


def causal(count: int) -> Tensor:
    return torch.full((count, count), -torch.inf).triu(1)[None, None]


def new_layer(family: Family, config: PretrainedConfig) -> nn.Module:
    config._attn_implementation = "eager"
    layer: Any = family.layer(config, family.number).eval()
    if family.form == "eagle":
        layer.input_layernorm = nn.Identity()
    elif family.form == "eagle3":
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(layer.self_attn, name)
            wide = nn.Linear(2 * config.hidden_size, old.out_features, bias=False)
            setattr(layer.self_attn, name, wide)
    return layer


def layer_tensors(form: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a layer's tensors under the layer's own names."""
    prefix = {
        "nextn": f"model.layers.{LAYERS}.",
        "mtp": "mtp.layers.0.",
        "eagle": "layers.0.",
        "eagle3": "midlayer.",
    }[form]
    inner = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    return {n: t for n, t in inner.items() if n.startswith(("self_attn", "mlp", "input", "post"))}


def make_head(kind: str, folder: Path, normed_residual: bool = False) -> tuple[TorchHead, str]:
    """Make a target and its head; return the head, and the folder of its checkpoint."""
    torch.manual_seed(7)
    family = FAMILIES[kind]
    form = family.form
    save_byte_tokenizer(folder)
    make_tiny(family.model, 7, folder, **{"num_hidden_layers": LAYERS, **family.flags})
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    config = AutoConfig.from_pretrained(folder)
    if form.startswith("eagle"):
        config.rms_norm_eps = NORM_EPS
    hidden, width = config.hidden_size, config.hidden_size * 2
    prefix = {"nextn": f"model.layers.{LAYERS}.", "mtp": "mtp."}.get(form, "")
    inner = {"nextn": prefix, "mtp": "mtp.layers.0.", "eagle": "layers.0.", "eagle3": "midlayer."}
    tensors = {f"{inner[form]}{n}": t for n, t in new_layer(family, config).state_dict().items()}
    fuse = "eh_proj" if form == "nextn" else "fc"
    tensors[f"{prefix}{fuse}.weight"] = torch.empty(
        hidden, width if form != "eagle3" else hidden * len(TAPS)
    )
    norms = {
        "nextn": ["enorm", "hnorm", "shared_head.norm"],
        "mtp": ["pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"],
        "eagle": [],
        "eagle3": ["midlayer.hidden_norm", "norm"],
    }[form]
    tensors |= {f"{prefix}{name}.weight": torch.empty(hidden) for name in norms}
    if form == "eagle":
        tensors["fc.bias"] = torch.empty(hidden)
    if form == "eagle3":
        tensors["lm_head.weight"] = torch.empty(DRAFT_VOCAB, hidden)
    for name, tensor in tensors.items():
        noise = torch.randn_like(tensor)
        is_norm = tensor.ndim == 1 and "norm" in name
        tensors[name] = family.mean + 0.2 * noise if is_norm else noise * tensor.shape[-1] ** -0.5
    head = TorchHead(family, config, tensors, target)
    if form in ("nextn", "mtp"):
        save_file(load_file(folder / "model.safetensors") | tensors, folder / "model.safetensors")
        return head, str(folder)
    return _save_eagle(head, folder, normed_residual)


def _save_eagle(head: TorchHead, folder: Path, normed_residual: bool) -> tuple[TorchHead, str]:
    own, said = folder / "head", json.loads((folder / "config.json").read_text())
    own.mkdir()
    said |= {"num_hidden_layers": 1, "rms_norm_eps": NORM_EPS}
    tensors = dict(head.tensors)
    if head.form == "eagle":
        said["architectures"] = ["EagleLlamaForCausalLM"]
        tensors["embed_tokens.weight"] = head.target.model.embed_tokens.weight.detach().clone()
    else:
        said["architectures"] = ["LlamaForCausalLMEagle3"]
        said |= {"draft_vocab_size": DRAFT_VOCAB, "norm_before_residual": normed_residual}
        said["eagle_aux_hidden_state_layer_ids"] = list(TAPS)
        vocab = head.config.vocab_size
        head.names = torch.randperm(vocab)[:DRAFT_VOCAB].sort().values
        tensors["d2t"] = head.names - torch.arange(DRAFT_VOCAB)
        known = torch.zeros(vocab, dtype=torch.bool)
        known[head.names] = True
        tensors["t2d"] = known
        head.taps, head.normed_residual = TAPS, normed_residual
    save_file(tensors, own / "model.safetensors")
    (own / "config.json").write_text(json.dumps(said))
    return head, str(own)
