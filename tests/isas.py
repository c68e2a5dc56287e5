"""The instruction sets that tests of kernels run on."""

from quire.ops.native.kernels import available_isas, emulated_isas

ISAS = [*reversed(available_isas()), *emulated_isas()]
"""Where one of them is enough, the best, which users have."""
