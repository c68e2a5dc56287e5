"""Run the native tests on kernels that are compiled with sanitizers: `make sanitize`.

    python tools/sanitize.py address [pytest arguments]   # ASan and UBSan
    python tools/sanitize.py thread [pytest arguments]    # TSan

Each has a build of its own below `build-sanitize`, by the compiler that CXX names, and is loaded in
the place of the installed module, its runtime before all else. Clang's ASan sees masked loads and
stores of AVX-512, GCC's does not. Leaks are not looked for: Python and torch end with memory that
they never free. Exit status: pytest's.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
RUNTIMES = {"address": "asan", "thread": "tsan"}
TESTS = {
    "address": [
        *("tests/kernels", "tests/unit/ops", "tests/golden/test_plan.py"),
        *("tests/unit/models/test_offload.py", "tests/unit/models/test_pack_cache.py"),
        *("tests/unit/spec", "tests/unit/sampling", "tests/unit/text/test_tokenizer_json.py"),
        *(f"tests/unit/frontend/images/test_{name}.py" for name in ("raster", "prepare")),
        *(f"tests/unit/runner/test_{name}.py" for name in ("kv_host", "kv_reads", "drafts")),
    ],
    "thread": [
        *("tests/kernels/test_pool.py", "tests/unit/ops/test_rank_group.py"),
        *("tests/unit/ops/test_plan.py", "tests/golden/test_plan.py"),
        *("tests/unit/models/test_offload.py", "tests/unit/models/test_pack_cache.py"),
    ],
}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}


def _compiler() -> str:
    return os.environ.get("CXX", "c++")


def build(kind: str) -> Path:
    """The module, compiled with the sanitizers of `kind`."""
    folder = ROOT / "build-sanitize" / f"{kind}-{Path(_compiler()).name}"
    settings = {
        "cmake.define.QUIRE_SANITIZE": SANITIZERS[kind],
        "build-dir": str(folder / "build"),
    }
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"),
            *(f"--config-settings={name}={value}" for name, value in settings.items()),
            *("--target", str(folder / "installed"), str(ROOT)),
        ],
        cwd=ROOT,
        env=os.environ | {"PIP_CONSTRAINT": "constraints.txt"},  # pip splits it at spaces
        check=True,
    )
    [module] = (folder / "installed" / "quire").glob("_native*.so")
    return module


def library(*names: str) -> str:
    """The path of the first of these libraries that the compiler knows."""
    compiler = _compiler()
    for name in names:
        found = subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        if os.path.isabs(found):
            return found
    raise SystemExit(f"{compiler} has none of {', '.join(names)}: install its sanitizers' runtime")


def environment(kind: str) -> dict[str, str]:
    """The runtime comes first, and with it libstdc++, whose functions it has to find."""
    name = RUNTIMES[kind]
    runtime = library(f"libclang_rt.{name}-{platform.machine()}.so", f"lib{name}.so")
    preload = f"{runtime} {library('libstdc++.so.6')}"
    return OPTIONS | os.environ | {"LD_PRELOAD": preload}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in SANITIZERS:
        print(__doc__, file=sys.stderr)
        return 2
    kind, *rest = arguments
    module = build(kind)
    command = [
        *(sys.executable, "-m", "pytest", "-p", "tools.native_module", f"--native={module}"),
        *("-m", ""),  # every case
        "--capture=sys",  # a finding is written past Python, and ends the process
        *(*TESTS[kind], *rest),
    ]
    return subprocess.run(command, cwd=ROOT, env=environment(kind), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
