"""Recurrent layers on the native kernels; `torch_ops.recurrent` documents each op in full."""

from __future__ import annotations

from typing import Any, NoReturn

from quire.core.errors import ConfigError


class RecurrentKernels:
    """The ops of recurrent layers."""

    def causal_conv1d(self, *_: Any, **__: Any) -> NoReturn:
        raise ConfigError("Recurrent layers have no kernels yet.", fix="Use --ops reference.")

    gated_delta_rule = mamba2_scan = gated_norm = causal_conv1d
