"""GPT-2's layers in plain torch: dense products and scaled_dot_product_attention, nothing else.

What remains of a model when everything is taken away that an engine or a library adds: the least
time that torch's own kernels leave.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.bench.peers.driver import Options, config_of, main
from quire.core.outputs import RequestMetrics

_SPREAD = 0.02
"""Standard deviation of made-up weights."""


class TorchLayers:
    """One static batch; keys and values are appended to two tensors a layer."""

    def __init__(self, options: Options) -> None:
        config = config_of(options.model)
        if config["model_type"] != "gpt2" or options.quantization is not None:
            raise SystemExit("Plain torch layers: GPT-2's shape only, without quantization.")
        torch.set_num_threads(options.num_threads)
        torch.manual_seed(options.seed)
        dtype, width = getattr(torch, options.dtype), config["n_embd"]
        self.vocab_size: int = config["vocab_size"]
        self.name = f"torch {torch.__version__}"
        self._tokens = _weight(self.vocab_size, width, dtype)
        self._positions = _weight(config["n_positions"], width, dtype)
        self._layers = [
            _Layer(width, config["n_head"], config["layer_norm_epsilon"], dtype)
            for _ in range(config["n_layer"])
        ]
        self._norm = _Norm(width, config["layer_norm_epsilon"], dtype)

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], output_len: int) -> list[RequestMetrics]:
        token_ids, past, moments = torch.tensor(prompts), 0, []
        start = time.monotonic()
        for _ in range(output_len):
            logits = self.logits(token_ids, past)
            past += token_ids.shape[1]
            token_ids = logits.argmax(-1, keepdim=True)
            moments.append(time.monotonic())
        times = RequestMetrics(
            arrival_time=start, first_token_time=moments[0], last_token_time=moments[-1]
        )
        return [times] * len(prompts)

    def logits(self, token_ids: Tensor, past: int) -> Tensor:
        """[batch, vocabulary] after the last of `token_ids`, [batch, tokens].

        They follow `past` tokens of earlier calls: none, or else one token at a time.
        """
        x = F.embedding(token_ids, self._tokens) + self._positions[past:][: token_ids.shape[1]]
        for layer in self._layers:
            x = layer(x, past)
        return F.linear(self._norm(x[:, -1]), self._tokens)


class _Norm:
    def __init__(self, width: int, epsilon: float, dtype: torch.dtype) -> None:
        self._weight, self._bias = torch.ones(width, dtype=dtype), torch.zeros(width, dtype=dtype)
        self._epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self._weight.shape, self._weight, self._bias, self._epsilon)


class _Linear:
    def __init__(self, rows: int, columns: int, dtype: torch.dtype) -> None:
        self._weight, self._bias = _weight(rows, columns, dtype), torch.zeros(rows, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class _Layer:
    def __init__(self, width: int, heads: int, epsilon: float, dtype: torch.dtype) -> None:
        self._kept = torch.empty(0)  # keys, values: [2, batch, heads, tokens, head_dim]
        self._heads = heads
        self._norms = [_Norm(width, epsilon, dtype) for _ in range(2)]
        self._qkv = _Linear(3 * width, width, dtype)
        self._projection = _Linear(width, width, dtype)
        self._up, self._down = _Linear(4 * width, width, dtype), _Linear(width, 4 * width, dtype)

    def __call__(self, x: Tensor, past: int) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self._qkv(self._norms[0](x)).view(batch, tokens, 3, self._heads, -1)
        q, *new = qkv.permute(2, 0, 3, 1, 4)
        kept = torch.stack(new)
        self._kept = torch.cat([self._kept, kept], 3) if past else kept
        k, v = self._kept
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=past == 0)
        x = x + self._projection(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self._down(F.gelu(self._up(self._norms[1](x)), approximate="tanh"))


def _weight(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return (_SPREAD * torch.randn(rows, columns)).to(dtype)


if __name__ == "__main__":
    main(TorchLayers)
