"""What this machine's processor can run; torch-free."""

from __future__ import annotations

from quire import _native


def available_isas() -> list[str]:
    """Return the instruction sets that this machine can run, least capable first."""
    return _native.detect()


def emulated_isas() -> list[str]:
    """Return instruction sets that this machine lacks and can emulate: slow, only for tests."""
    available = available_isas()
    return [name for name in _native.emulated() if name.removesuffix("_emulated") not in available]


def cpu_features() -> dict[str, bool]:
    """Return usable processor features, such as "avx512_vnni" or "amx_int8"."""
    return _native.features()
