"""Check that compiled code stays within its instruction set.

    python tools/isa_check.py [build directory]

Two mistakes make a binary crash on older machines, and only there: vector instructions in an object
that must be baseline, and a weak symbol (an inline function, a template) that several instruction
sets define, of which the linker keeps whichever it meets first. Both are read off the object files
with objdump and nm. Exit status: 0 clean, 1 violations, 2 nothing to check.
"""

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# Object libraries of CMakeLists.txt whose code runs only after its instruction set was detected.
X86_ISAS = {
    "quire_avx2",
    "quire_avx512",
    "quire_avx512_vnni",
    "quire_amx",
    "quire_emulated_tiles",
}
VECTOR_ISAS = X86_ISAS | {"quire_dotprod", "quire_i8mm"}
KERNEL_PREFIX = "quire_"

# AVX and later encode their instructions as v..., and AVX-512's masks as k.... On ARM these are
# products of int8 and bfloat16, and conversions to the latter.
_VECTOR = re.compile(
    r"\t((?:v(?!er[rw]\b|m[a-z]*\b)[a-z0-9]+|k[a-z]+[bwdq])\b.*|.*%[yz]mm\d.*"
    r"|(?:(?:[us]|us|su|bf)(?:dot|mmla)|bfcvt\w*|bfmlal[bt])\b.*)$",
    re.MULTILINE,
)


class NothingToCheckError(Exception):
    """The object files or the tools that read them are not here."""


def find_objects(build: Path) -> dict[str, list[Path]]:
    """Object files by CMake target, of the most recent build below `build`."""
    trees = sorted(build.glob("**/CMakeFiles/_native.dir"), key=lambda p: p.stat().st_mtime)
    if not trees:
        raise NothingToCheckError(f"no object files below {build}; build the package first")
    objects: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(trees[-1].parent.glob("*.dir/**/*.o")):
        target = path.relative_to(trees[-1].parent).parts[0].removesuffix(".dir")
        objects[target].append(path)
    return dict(objects)


def _read(tool: str, *arguments: str) -> str:
    if shutil.which(tool) is None:
        raise NothingToCheckError(f"{tool} (binutils) is not installed")
    return subprocess.run([tool, *arguments], check=True, capture_output=True, text=True).stdout


def vector_instructions(path: Path) -> list[str]:
    """AVX and AVX-512 instructions in an object file, each with its function."""
    command = ("objdump", "-d", "--no-show-raw-insn")
    if not _VECTOR.search(_read(*command, str(path))):
        return []
    found = []
    function = "?"
    for line in _read(*command, "-C", str(path)).splitlines():  # -C is slow
        if line.endswith(">:"):
            function = line.partition("<")[2].removesuffix(">:")
        if instruction := _VECTOR.search(line):
            found.append(f"{instruction[1].strip()} in {function}")
    return found


def weak_symbols(paths: list[Path]) -> set[str]:
    """Names of the weak symbols that object files define."""
    text = _read("nm", "--defined-only", *map(str, paths))
    symbols = (line.split() for line in text.splitlines())
    return {fields[-1] for fields in symbols if len(fields) == 3 and fields[1] in "WVu"}


def check(build: Path) -> list[str]:
    """Every violation among the objects below `build`. Raises NothingToCheckError."""
    objects = find_objects(build)
    violations = []
    for target, paths in objects.items():
        if target in VECTOR_ISAS:
            continue
        for path in paths:
            found = vector_instructions(path)
            if found:
                more = f" and {len(found) - 1} more" if len(found) > 1 else ""
                violations.append(f"{target}/{path.name} is not baseline: {found[0]}{more}")
    owners: dict[str, set[str]] = defaultdict(set)
    for target, paths in objects.items():
        for symbol in weak_symbols(paths):
            owners[symbol].add(target)
    for symbol, targets in sorted(owners.items()):
        if len(targets) > 1 and any(t.startswith(KERNEL_PREFIX) for t in targets):
            violations.append(f"weak symbol {symbol} is in {', '.join(sorted(targets))}")
    return violations


def main(arguments: list[str]) -> int:
    default = Path(__file__).resolve().parent.parent / "build"
    try:
        violations = check(Path(arguments[0]) if arguments else default)
    except NothingToCheckError as nothing:
        print(nothing, file=sys.stderr)
        return 2
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
