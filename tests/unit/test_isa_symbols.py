"""No compiled code runs ahead of its instruction set, and the checker can tell."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.isa_check import X86_ISAS, NothingToCheckError, check, find_objects

BUILD = Path(__file__).resolve().parents[2] / "build"


def verdict(build: Path) -> list[str]:
    try:
        return check(build)
    except NothingToCheckError as nothing:
        pytest.skip(str(nothing))


def test_quire_native_is_clean() -> None:
    assert verdict(BUILD) == []


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 kernels")
def test_all_kernels_are_compiled_for_the_tests() -> None:
    """`make demo` compiles only what its machine needs (QUIRE_ONE_ISA)."""
    try:
        assert set(find_objects(BUILD)) >= X86_ISAS
    except NothingToCheckError as nothing:
        pytest.skip(str(nothing))


@pytest.fixture
def compile_unit(tmp_path: Path):
    """Compile text as one object of a CMake target, in a pretended build tree."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")

    def compile_unit(target: str, text: str, *flags: str) -> Path:
        folder = tmp_path / "CMakeFiles" / f"{target}.dir"
        folder.mkdir(parents=True)
        source = tmp_path / f"{target}.cpp"
        source.write_text(text)
        subprocess.run(
            [compiler, "-O2", *flags, "-c", str(source), "-o", str(folder / "unit.cpp.o")],
            check=True,
        )
        return tmp_path

    return compile_unit


SCALE = "void scale(float* x) { for (int i = 0; i < 64; ++i) x[i] *= 2; }"
INLINE = """
inline int twice(int x) { static int n; return n += 2 * x; }
int f(int x) { return twice(x); }
"""


def test_vector_code_in_a_baseline_object_is_found(compile_unit) -> None:
    compile_unit("_native", SCALE)
    build = compile_unit("quire_avx2", SCALE, "-mavx2", "-O3")
    assert verdict(build) == []
    compile_unit("quire_portable", SCALE, "-mavx", "-O3")
    [found] = verdict(build)
    assert found.startswith("quire_portable/unit.cpp.o is not baseline: v")


def test_a_weak_symbol_of_two_instruction_sets_is_found(compile_unit) -> None:
    compile_unit("_native", "int main_unit;")
    build = compile_unit("quire_avx2", f"namespace avx2 {{ {INLINE} }}")
    compile_unit("quire_avx512", f"namespace avx512 {{ {INLINE} }}")
    assert verdict(build) == []
    compile_unit("quire_portable", INLINE)
    assert verdict(build) == []
    compile_unit("quire_avx", INLINE)
    assert any(
        "twice" in found and "quire_avx, quire_portable" in found for found in verdict(build)
    )


def test_an_empty_build_directory_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(NothingToCheckError, match="build the package first"):
        check(tmp_path)
