"""Reference ops that `torch.compile` fuses, for steps of many rows.

An op is compiled when such a step first calls it, so a start compiles nothing. Products are whole
here, not in tiles of a fixed size. So bits may differ from the plain ops', and may depend on what
else is in the batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.core.dtypes import DType
from quire.ops.torch_ops import activations, reference
from quire.ops.torch_ops.arrays import torch_dtype
from quire.ops.weights import LinearWeight

logger = logging.getLogger(__name__)

LEAST_ROWS = 64
"""Rows from which an op is compiled: a prompt's, not those of a few decoding sequences."""


def linear(x: Tensor, packed: LinearWeight, dtype: DType | None = None) -> Tensor:
    """Return `reference.linear`, as one product."""
    weight = reference.dense_weight(packed)
    y = F.linear(x, weight.weight, weight.bias)
    y = y if weight.epilogue == "none" else activations.activation(y, weight.epilogue)
    return y if dtype is None else y.to(torch_dtype(dtype))


_SAME: dict[str, Callable[..., Any]] = {
    "rms_norm": reference.rms_norm,
    "add_rms_norm": reference.add_rms_norm,
    "layer_norm": reference.layer_norm,
    "add_layer_norm": reference.add_layer_norm,
    "activation": activations.activation,
    "rope_kv_write": reference.rope_kv_write,
}
OPS = {"linear": (reference.linear, linear), **{op: (f, f) for op, f in _SAME.items()}}
"""Op → the plain function, and the one to compile."""


class Compiler:
    """Compiles ops by a backend of torch; goes on with the plain ones if it fails.

    Args:
        backend: "inductor", or another that `torch.compile` takes.
    """

    def __init__(self, backend: str | Callable[..., Any]) -> None:
        self._backend: Any = backend
        self._works = True

    def ops(self) -> dict[str, Callable[..., Any]]:
        """Return the ops by name; the first argument of each has the rows."""
        return {name: self._op(name, *functions) for name, functions in OPS.items()}

    def _op(
        self, name: str, plain: Callable[..., Any], whole: Callable[..., Any]
    ) -> Callable[..., Any]:
        compiled: Any = None

        @wraps(plain)
        def op(x: Tensor, *args: Any, **named: Any) -> Any:
            nonlocal compiled
            if len(x) < LEAST_ROWS or not self._works:
                return plain(x, *args, **named)
            try:
                if compiled is not None:
                    return compiled(x, *args, **named)
                begin = time.perf_counter()
                compiled = torch.compile(whole, backend=self._backend, dynamic=True)
                result = compiled(x, *args, **named)
            except (torch._dynamo.exc.TorchDynamoException, ImportError) as error:
                self._works = False
                reason = " ".join(str(error).split("\n")[:2])[:300]
                logger.warning(
                    "torch.compile failed for %s: %s. Prompts run op by op from now on; leave "
                    "mode out of --compilation-config to silence this.", name, reason,
                )  # fmt: skip
                return plain(x, *args, **named)
            logger.info("compiled %s in %.1f s", name, time.perf_counter() - begin)
            return result

        return op
