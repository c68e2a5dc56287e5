"""Detection and choice of the CPU's instruction set."""

import platform

import pytest

from quire.ops.native.kernels import available_isas, cpu_features, native_kernels

ORDER = ["portable", "avx2", "avx512", "avx512_vnni", "amx"]


def kernel_flags() -> set[str]:
    """What the operating system's kernel says the processor can do."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line for line in file if line.startswith("flags")]
    except OSError:
        lines = []
    if not lines:
        pytest.skip("no processor flags in /proc/cpuinfo")
    return set(lines[0].split(":")[1].split())


def test_portable_is_always_there_and_order_is_by_capability() -> None:
    names = available_isas()
    assert names[0] == "portable"
    assert names == [name for name in ORDER if name in names]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 features")
def test_features_agree_with_the_operating_system() -> None:
    flags = kernel_flags()
    assert {name for name, there in cpu_features().items() if there} == flags & set(cpu_features())
    assert ("avx2" in available_isas()) == ({"avx2", "fma", "f16c"} <= flags)
    avx512 = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"}
    assert ("avx512" in available_isas()) == (avx512 <= flags)
    vnni = avx512 | {"avx512_vnni", "avx512_bf16", "avx512vbmi"}
    assert ("avx512_vnni" in available_isas()) == (vnni <= flags)
    # The flags say what the processor has; the permission to use tiles may still be refused.
    assert ("amx" not in available_isas()) or vnni | {"amx_tile", "amx_int8", "amx_bf16"} <= flags


def test_the_best_is_chosen_unless_one_is_forced() -> None:
    assert native_kernels().isa == available_isas()[-1]
    assert native_kernels(None).isa == available_isas()[-1]
    for name in available_isas():
        assert native_kernels(name).isa == name


@pytest.mark.parametrize("name", ["", "avx10", "AVX2"])
def test_an_unknown_isa_is_refused_by_naming_the_available(name: str) -> None:
    with pytest.raises(ValueError, match=f"no kernels for CPU ISA '{name}'.*portable"):
        native_kernels(name)


def test_an_isa_that_this_machine_lacks_is_refused() -> None:
    missing = [name for name in ORDER if name not in available_isas()]
    if not missing or platform.machine() != "x86_64":
        pytest.skip("this machine runs every instruction set that is built")
    with pytest.raises(ValueError, match=f"lacks CPU ISA '{missing[0]}'.*portable"):
        native_kernels(missing[0])
