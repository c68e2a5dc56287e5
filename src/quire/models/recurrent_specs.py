"""Declarations of recurrent layers, one function for each kind; torch-free."""

from __future__ import annotations

from quire.core.layers import DeltaConfig, Mamba2Config, RecurrentConfig, ShortConvConfig
from quire.models.parameters import Cut
from quire.models.specs import ConvSpec, LinearSpec, NormSpec, RecurrentSpec, VectorSpec


def recurrent_spec(stem: str, config: RecurrentConfig, hidden: int) -> RecurrentSpec:
    """Return the declaration of a recurrent layer."""
    if isinstance(config, ShortConvConfig):
        return _short_conv(stem, config, hidden)
    if isinstance(config, Mamba2Config):
        return _mamba2(stem, config, hidden)
    return _delta(stem, config, hidden)


def _short_conv(stem: str, config: ShortConvConfig, hidden: int) -> RecurrentSpec:
    width, bias, rows = config.channels, config.bias, _rows(config)
    return RecurrentSpec(
        config=config,
        inner=LinearSpec(f"{stem}.in", (3 * width,), hidden, bias, rows, pieces=(width,) * 3),
        conv=ConvSpec(f"{stem}.conv", (width,), config.width, bias, rows),
        out=_out(stem, config, width, hidden, bias),
    )


def _delta(stem: str, config: DeltaConfig, hidden: int) -> RecurrentSpec:
    rank, heads, rows = config.gate_rank, config.value_heads, _rows(config)
    mixed = config.keys, config.keys, config.values
    parts = config.channels, config.values, heads, heads
    decay: tuple[LinearSpec, ...] = ()
    gate: tuple[LinearSpec, ...] = ()
    inner = LinearSpec(f"{stem}.in", parts, hidden, False, rows, pieces=(*mixed, *parts[1:]))
    if config.grouped:  # by key heads, of which a rank has a run
        grouped = config.channels + config.values, 2 * heads
        inner = LinearSpec(f"{stem}.in", grouped, hidden, False, rows, runs=config.runs)
    if rank:
        inner = LinearSpec(f"{stem}.in", (*mixed, heads), hidden, False, rows)
        decay, gate = (
            (
                LinearSpec(f"{stem}.{name}_low", (rank,), hidden, False),
                LinearSpec(f"{stem}.{name}", (width,), rank, False, rows),
            )
            for name, width in (("decay", config.keys), ("gate", config.values))
        )
    return RecurrentSpec(
        config=config,
        inner=inner,
        decay=decay,
        gate=gate,
        conv=ConvSpec(f"{stem}.conv", mixed, config.width, False, rows),
        rate=VectorSpec(f"{stem}.rate", heads, rows),
        bias=VectorSpec(f"{stem}.bias", config.keys if rank else heads, rows),
        norm=NormSpec(f"{stem}.norm", config.value_dim),
        out=_out(stem, config, config.values, hidden),
    )


def _mamba2(stem: str, config: Mamba2Config, hidden: int) -> RecurrentSpec:
    width, heads, rows = config.inner, config.heads, _rows(config)
    shared = config.groups * config.state_dim
    parts = width, width, shared, shared, heads
    channels = width, shared, shared
    return RecurrentSpec(
        config=config,
        inner=LinearSpec(f"{stem}.in", parts, hidden, config.bias, rows),
        conv=ConvSpec(f"{stem}.conv", channels, config.width, config.conv_bias, rows),
        rate=VectorSpec(f"{stem}.rate", heads, rows),
        bias=VectorSpec(f"{stem}.bias", heads, rows),
        skip=VectorSpec(f"{stem}.skip", heads, rows),
        norm=NormSpec(f"{stem}.norm", width, cut=rows) if config.normed else None,
        out=_out(stem, config, width, hidden, config.out_bias),
    )


def _rows(config: RecurrentConfig) -> Cut:
    return "rows" if config.divided else ""


def _out(
    stem: str, config: RecurrentConfig, width: int, hidden: int, bias: bool = False
) -> LinearSpec:
    cut: Cut = "columns" if config.divided else ""
    return LinearSpec(f"{stem}.out", (hidden,), width, bias, cut)
