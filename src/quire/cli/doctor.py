"""`quire doctor`: check this machine, and suggest fixes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from quire.core.errors import ConfigError
from quire.core.extras import installed, version_of
from quire.explain.surroundings import chosen, memory_nodes
from quire.resolve.flags import Flags
from quire.system import env
from quire.system.gpu import first_gpu, why_unused
from quire.system.hardware import cpu_name, detect
from quire.system.proc import text
from quire.system.records import dataclass

GIB = 2**30
LEAST_MEMORY, LEAST_DISK = 2 * GIB, 5 * GIB
LEAST_FILES = 4096
"""Open files: one per connection, and some more."""
BUSY_SHARE = 0.5
"""Share of the cores in use by others above which `doctor` warns."""

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        fix: what to do; empty if nothing is wrong.
    """

    level: Level
    name: str
    found: str
    fix: str = ""


Result = tuple[str, str]
"""What a check found, and the fix; an empty one if nothing is wrong."""


class _BrokenError(Exception):
    """Quire cannot run; the arguments are those of a `Result`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the output, the measurement and the port to `parser`."""
    add = Flags(parser)
    add("--json", False, "print a JSON list of the findings")
    add(
        "--measure",
        False,
        "measure memory bandwidth and product rates; takes some seconds. Stop other programs first",
    )
    add("--host", "127.0.0.1", "address of `quire serve`")
    add("--port", 8000, "port of `quire serve`", type=int)


def run(namespace: argparse.Namespace) -> int:
    """Print the findings; return 1 if one prevents Quire from running."""
    findings = list(examine(namespace.host, namespace.port, measure=namespace.measure))
    if namespace.json:
        json.dump([asdict(finding) for finding in findings], sys.stdout, indent=2)
        print()
    else:
        sys.stdout.write(render(findings))
    return 1 if any(finding.level == "fail" for finding in findings) else 0


def render(findings: list[Finding]) -> str:
    """Return one line per finding with its fix, and the counts."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<4}  {finding.name:<{width}}  {finding.found}")
        if finding.fix:
            lines.append(f"{'':<{width + 8}}→ {finding.fix}")
    counts = {level: sum(f.level == level for f in findings) for level in ("ok", "warn", "fail")}
    lines += ["", ", ".join(f"{count} {level}" for level, count in counts.items())]
    return "\n".join(lines) + "\n"


def examine(host: str, port: int, *, measure: bool = False) -> Iterator[Finding]:
    """Yield all findings; checks that are impossible here are left out."""
    checks: dict[str, Callable[[], Result | None]] = {
        "python": _python,
        "packages": _packages,
        "kernels": _native,
        "processor": _processor,
        "gpu": _gpu,
        "cores": _quota,
        "others": _busy,
        "clock": _governor,
        "NUMA": _numa,
        "memory": _memory,
        "huge pages": _huge_pages,
        "bandwidth": lambda: _bandwidth(measure=measure),
        "cache": _cache,
        "downloads": _hub,
        "open files": _open_files,
        "port": lambda: _port(host, port),
    }
    for name, check in checks.items():
        try:
            result = check()
        except _BrokenError as error:
            yield Finding("fail", name, *error.args)
            continue
        if result is not None:
            yield Finding("warn" if result[1] else "ok", name, *result)


def _python() -> Result:
    found = f"{platform.python_version()}, on {platform.system()} {platform.release()}"
    is_linux = platform.system() == "Linux"
    return found, "" if is_linux else "Quire is made for Linux; use a container."


def _packages() -> Result:
    """Check that Quire's packages are installed; torch is optional."""
    try:
        needed = [line for line in requires("quire") or [] if "extra ==" not in line]
        quire = version("quire")
    except PackageNotFoundError:
        from quire import __version__ as quire

        needed = ["numpy", "tokenizers", "msgspec", "starlette"]
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needed]
    if missing := [name for name in names if version_of(name) is None]:
        fix = f"{sys.executable} -m pip install {' '.join(missing)}"
        raise _BrokenError(f"missing: {', '.join(missing)}", fix)
    torch = version_of("torch")
    found = f"quire {quire} and the {len(names)} that it needs"
    return f"{found}; torch {torch}" if torch else f"{found}; no torch", ""


def _native() -> Result:
    try:
        from quire.ops.isa import available_isas
    except ImportError as error:
        raise _BrokenError(
            f"the native module cannot be imported: {error}",
            "Install Quire again where a C++20 compiler is; --ops reference works without, slowly.",
        ) from error
    isas = available_isas()
    best, forced = isas[-1], env.cpu_isa()
    if forced is not None and forced != best:
        found = f"native, forced to {forced} by QUIRE_CPU_ISA"
        fix = f"Unset QUIRE_CPU_ISA: this processor runs {best}."
        if forced not in isas:
            raise _BrokenError(found, fix)
        return found, fix
    if best == "portable":
        fix = "Use a processor with AVX2 or better, and a virtual machine that shows it."
        return "native, without vector instructions", fix
    return f"native, for {best}", ""


def _processor() -> Result:
    from quire.ops.isa import cpu_features

    try:
        features = [name for name, usable in cpu_features().items() if usable]
    except ImportError:
        features = []
    return f"{cpu_name()}: {' '.join(features)}", ""


def _gpu() -> Result | None:
    gpu = first_gpu()
    if gpu is None:
        return None
    found = f"{gpu.name}, {gpu.memory_bytes / GIB:.1f} GiB"
    if why := why_unused(gpu):
        fix = "Install torch for CUDA and a driver for its version (pip install 'quire[gpu]')."
        fix = fix if gpu.kind == "cuda" else "Install the torch that is built for ROCm."
        return f"{found}, which is not used: {why}", fix
    ops = "Triton's kernels" if installed("triton") else "the reference ops"
    if gpu.kind != "cuda":
        return f"{found}: --device {gpu.device} tries it; nothing has run on one yet", ""
    return f"{found}: --device auto takes it, with {ops}", ""


def _quota() -> Result:
    """Check how many of the cores this process may use."""
    usable, there = detect().cores, os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    fix = "A container's CPU quota holds the others back; raise it."
    found = f"{usable} usable of {there} hardware threads"
    return found, fix if usable < allowed // 2 else ""


def _busy() -> Result | None:
    """Check whether other programs compute; a shared core doubles a step's time."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        return None
    cores = os.cpu_count() or 1
    fix = "Stop other programs, or leave them cores with --num-threads."
    found = f"load average {load:.1f}, on {cores} hardware threads"
    return found, fix if load > BUSY_SHARE * cores else ""


def _governor() -> Result | None:
    governor = text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    if not governor:
        return None  # in a virtual machine the host decides
    driver = text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"))
    slow = governor == "powersave" and "intel_pstate" not in driver
    return governor, "cpupower frequency-set -g performance" if slow else ""


def _numa() -> Result | None:
    nodes = memory_nodes()
    if len(nodes) > 1:
        found = f"{len(nodes)} nodes; memory of another one is read more slowly"
        fix = "Run one engine per node: numactl --cpunodebind=0 --membind=0 quire serve …"
        return found, fix
    return ("1 node", "") if nodes else None


def _memory() -> Result:
    here = detect()
    total, free = here.memory_bytes, here.available_bytes
    found = f"{free / GIB:.1f} GiB free of {total / GIB:.1f} GiB"
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        whole = total
    if total < whole:
        found += f", the container's limit; the machine has {whole / GIB:.1f}"
    fix = "Free memory, or raise the container's limit."
    return found, fix if free < LEAST_MEMORY else ""


def _huge_pages() -> Result | None:
    setting = text(Path("/sys/kernel/mm/transparent_hugepage/enabled"))
    if not setting:
        return None
    if chosen(setting) == "never":
        found = "never: weights are read a quarter slower from small pages"
        return found, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return chosen(setting), ""


def _bandwidth(*, measure: bool) -> Result:
    """Report memory bandwidth, which limits the speed of one sequence."""
    from quire.explain.limits import load_limits

    limits = load_limits(detect().cores)
    if measure:
        from quire.bench.kernels.limits import measure_and_keep

        limits = measure_and_keep()
    if limits is None:
        return "not measured on this machine", "quire doctor --measure"
    cores = limits.cores
    products = ", ".join(
        f"{name} {limits.flops_of(name, cores) / 1e12:.2f}" for name in limits.flops
    )
    found = f"{limits.bandwidth_of(cores) / 1e9:.1f} GB/s read; products {products} TFLOP/s"
    one = limits.bandwidth_of(1)
    if limits.disturbed:
        found += f"; meanwhile other processes used {limits.disturbance:.1f} cores"
        return found, "quire doctor --measure when the machine is idle."
    if cores > 1 and limits.bandwidth_of(cores) < one:
        found += f"; one thread alone reads {one / 1e9:.1f}"
        return found, "Other processes used the machine: quire doctor --measure when it is idle."
    return found, ""


def _cache() -> Result:
    """Check the folder of packed weights, measured limits and tuned kernels."""
    folder = env.cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        raise _BrokenError(
            f"{folder} cannot be written: {error.strerror or error}",
            "Set QUIRE_CACHE_DIR to a folder that can.",
        ) from error
    fix = "Make room, or set QUIRE_CACHE_DIR to another disk."
    return f"{folder}, {free / GIB:.1f} GiB free", fix if free < LEAST_DISK else ""


def _hub() -> Result:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    there = next((p for p in (folder, *folder.parents) if p.is_dir()), Path("/"))
    found = f"{folder}, {shutil.disk_usage(there).free / GIB:.1f} GiB free"
    if env.hf_offline():
        return f"{found}; HF_HUB_OFFLINE: nothing is fetched", ""
    if not os.access(there, os.W_OK):
        return f"{found}; it cannot be written", "Set HF_HOME."
    return found, ""


def _open_files() -> Result | None:
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else 1048576
    return f"at most {soft}", f"ulimit -n {most}" if soft < LEAST_FILES else ""


def _port(host: str, port: int) -> Result:
    from quire.server.http.listener import bind

    try:
        with bind(host, port) as listener:
            listener.listen()
    except (ConfigError, OSError) as error:
        what = error.what if isinstance(error, ConfigError) else str(error)
        fix = error.fix if isinstance(error, ConfigError) else None
        return what, fix or "Choose another with --port."
    return f"{host}:{port} is free", ""
