"""`make demo` compiles the kernels that its machine needs, and only those."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHOICE = Path(__file__).resolve().parents[2] / "cmake" / "choose_isas.cmake"
AVX2 = "avx2 fma f16c"
AVX512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl"
VNNI = f"{AVX512} avx512_vnni avx512_bf16 avx512vbmi"
X86 = "avx2;avx512;avx512_vnni;amx;amx_emulated"
ARM = "neon;dotprod;i8mm"


@pytest.mark.parametrize(
    ("built", "facts", "chosen"),
    [
        (X86, "flags\t\t: fpu sse2", ""),
        (X86, f"flags\t\t: {AVX2}", "avx2"),
        (X86, f"flags\t\t: {AVX512}", "avx512"),
        (X86, f"flags\t\t: {VNNI} amx_tile", "avx512_vnni"),
        # A process may be refused the tiles.
        (X86, f"flags\t\t: {VNNI} amx_tile amx_int8 amx_bf16", "avx512_vnni;amx"),
        (ARM, "Features\t: fp asimd", "neon"),
        (ARM, "Features\t: fp asimd asimddp i8mm", "dotprod"),
        (ARM, "Features\t: fp asimd asimddp sve i8mm bf16", "i8mm"),
        ("", "isa\t\t: rv64imafdc", ""),
    ],
)
def test_the_best_of_a_machine(built: str, facts: str, chosen: str, tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no CMake")
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{facts}\n\nprocessor\t: 1\n{facts}\n")
    script = tmp_path / "choose.cmake"
    script.write_text(
        f'cmake_policy(VERSION 3.25)\ninclude("{CHOICE}")\nset(ISAS "{built}")\n'
        f'quire_choose_isas("{tmp_path / "cpuinfo"}")\nmessage("chosen: ${{ISAS}}")\n'
    )
    done = subprocess.run([cmake, "-P", str(script)], capture_output=True, text=True, check=True)
    assert done.stderr == f"chosen: {chosen}\n"
