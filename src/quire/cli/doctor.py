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
from quire.resolve.flags import Flags
from quire.system import env
from quire.system.gpu import first_gpu, torch_cuda_version, torch_folder
from quire.system.hardware import cpu_name, detect
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
    checks: tuple[Callable[[], Finding | None], ...] = (
        _python, _packages, _native, _processor, _gpu, _quota, _busy, _governor, _numa, _memory,
        _huge_pages, lambda: _bandwidth(measure=measure), _cache, _hub, _open_files,
        lambda: _port(host, port),
    )  # fmt: skip
    for check in checks:
        finding = check()
        if finding is not None:
            yield finding


def _python() -> Finding:
    found = f"{platform.python_version()}, on {platform.system()} {platform.release()}"
    if platform.system() != "Linux":
        return Finding("warn", "python", found, "Quire is made for Linux; use a container.")
    return Finding("ok", "python", found)


def _packages() -> Finding:
    """Check that Quire's packages are installed; torch is optional."""
    try:
        needed = [line for line in requires("quire") or [] if "extra ==" not in line]
        quire = version("quire")
    except PackageNotFoundError:
        from quire import __version__ as quire

        needed = ["numpy", "tokenizers", "msgspec", "starlette"]
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needed]
    missing = [name for name in names if _version(name) is None]
    if missing:
        return Finding(
            "fail",
            "packages",
            f"missing: {', '.join(missing)}",
            f"{sys.executable} -m pip install {' '.join(missing)}",
        )
    torch = _version("torch")
    found = f"quire {quire} and the {len(names)} that it needs"
    return Finding("ok", "packages", f"{found}; torch {torch}" if torch else f"{found}; no torch")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _native() -> Finding:
    fix = "Install Quire again where a C++20 compiler is; --ops reference works without, slowly."
    try:
        from quire.ops.isa import available_isas
    except ImportError as error:
        return Finding("fail", "kernels", f"the native module cannot be imported: {error}", fix)
    isas = available_isas()
    best, forced = isas[-1], env.cpu_isa()
    if forced is not None and forced != best:
        return Finding(
            "warn" if forced in isas else "fail",
            "kernels",
            f"native, forced to {forced} by QUIRE_CPU_ISA",
            f"Unset QUIRE_CPU_ISA: this processor runs {best}.",
        )
    if best == "portable":
        return Finding(
            "warn",
            "kernels",
            "native, without vector instructions",
            "Use a processor with AVX2 or better, and a virtual machine that shows it.",
        )
    return Finding("ok", "kernels", f"native, for {best}")


def _processor() -> Finding:
    from quire.ops.isa import cpu_features

    try:
        features = [name for name, usable in cpu_features().items() if usable]
    except ImportError:
        features = []
    return Finding("ok", "processor", f"{cpu_name()}: {' '.join(features)}")


def _gpu() -> Finding | None:
    gpu = first_gpu()
    if gpu is None:
        return None
    found = f"{gpu.name}, {gpu.memory_bytes / GIB:.1f} GiB"
    if torch_folder() is None:
        fix = "pip install 'quire[torch]'; --device auto then takes the GPU."
        return Finding("warn", "gpu", f"{found}, which needs torch", fix)
    if torch_cuda_version() is None:
        fix = "Install torch for CUDA; --device auto then takes the GPU."
        return Finding("warn", "gpu", f"{found}, which the installed torch cannot use", fix)
    return Finding("ok", "gpu", f"{found}: --device auto takes it, with the reference ops")


def _quota() -> Finding:
    """Check how many of the cores this process may use."""
    usable, there = detect().cores, os.cpu_count() or 1
    found = f"{usable} usable of {there} hardware threads"
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    if usable < allowed // 2:
        return Finding(
            "warn", "cores", found, "A container's CPU quota holds the others back; raise it."
        )
    return Finding("ok", "cores", found)


def _busy() -> Finding | None:
    """Check whether other programs compute; a shared core doubles a step's time."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        return None
    cores = os.cpu_count() or 1
    found = f"load average {load:.1f}, on {cores} hardware threads"
    if load > BUSY_SHARE * cores:
        return Finding(
            "warn",
            "others",
            found,
            "Stop other programs, or leave them cores with --num-threads.",
        )
    return Finding("ok", "others", found)


def _governor() -> Finding | None:
    governor = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if not governor:
        return None  # in a virtual machine the host decides
    if governor == "powersave" and "intel_pstate" not in _read(
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"
    ):
        return Finding("warn", "clock", governor, "cpupower frequency-set -g performance")
    return Finding("ok", "clock", governor)


def _numa() -> Finding | None:
    nodes = list(Path("/sys/devices/system/node").glob("node[0-9]*"))
    if len(nodes) > 1:
        return Finding(
            "warn",
            "NUMA",
            f"{len(nodes)} nodes; memory of another one is read more slowly",
            "Run one engine per node: numactl --cpunodebind=0 --membind=0 quire serve …",
        )
    return Finding("ok", "NUMA", "1 node") if nodes else None


def _memory() -> Finding:
    here = detect()
    total, free = here.memory_bytes, here.available_bytes
    found = f"{free / GIB:.1f} GiB free of {total / GIB:.1f} GiB"
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        whole = total
    if total < whole:
        found += f", the container's limit; the machine has {whole / GIB:.1f}"
    if free < LEAST_MEMORY:
        return Finding("warn", "memory", found, "Free memory, or raise the container's limit.")
    return Finding("ok", "memory", found)


def _huge_pages() -> Finding | None:
    setting = _read("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting:
        return None
    chosen = setting.partition("[")[2].partition("]")[0]
    if chosen == "never":
        return Finding(
            "warn",
            "huge pages",
            "never: weights are read a quarter slower from small pages",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    return Finding("ok", "huge pages", chosen)


def _bandwidth(*, measure: bool) -> Finding:
    """Report memory bandwidth, which limits the speed of one sequence."""
    from quire.explain.limits import load_limits

    limits = load_limits(detect().cores)
    if measure:
        from quire.bench.kernels.limits import measure_and_keep

        limits = measure_and_keep()
    if limits is None:
        return Finding(
            "warn", "bandwidth", "not measured on this machine", "quire doctor --measure"
        )
    cores = limits.cores
    products = ", ".join(
        f"{name} {limits.flops_of(name, cores) / 1e12:.2f}" for name in limits.flops
    )
    found = f"{limits.bandwidth_of(cores) / 1e9:.1f} GB/s read; products {products} TFLOP/s"
    one = limits.bandwidth_of(1)
    if limits.disturbed:
        return Finding(
            "warn", "bandwidth",
            f"{found}; meanwhile other processes used {limits.disturbance:.1f} cores",
            "quire doctor --measure when the machine is idle.",
        )  # fmt: skip
    if cores > 1 and limits.bandwidth_of(cores) < one:
        return Finding(
            "warn", "bandwidth", f"{found}; one thread alone reads {one / 1e9:.1f}",
            "Other processes used the machine: quire doctor --measure when it is idle.",
        )  # fmt: skip
    return Finding("ok", "bandwidth", found)


def _cache() -> Finding:
    """Check the folder of packed weights, measured limits and tuned kernels."""
    folder = env.cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(
            "fail",
            "cache",
            f"{folder} cannot be written: {error.strerror or error}",
            "Set QUIRE_CACHE_DIR to a folder that can.",
        )
    found = f"{folder}, {free / GIB:.1f} GiB free"
    if free < LEAST_DISK:
        return Finding("warn", "cache", found, "Make room, or set QUIRE_CACHE_DIR to another disk.")
    return Finding("ok", "cache", found)


def _hub() -> Finding:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    there = next((p for p in (folder, *folder.parents) if p.is_dir()), Path("/"))
    found = f"{folder}, {shutil.disk_usage(there).free / GIB:.1f} GiB free"
    if env.hf_offline():
        return Finding("ok", "downloads", f"{found}; HF_HUB_OFFLINE: nothing is fetched")
    if not os.access(there, os.W_OK):
        return Finding("warn", "downloads", f"{found}; it cannot be written", "Set HF_HOME.")
    return Finding("ok", "downloads", found)


def _open_files() -> Finding | None:
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < LEAST_FILES:
        most = hard if hard != resource.RLIM_INFINITY else 1048576
        return Finding("warn", "open files", f"at most {soft}", f"ulimit -n {most}")
    return Finding("ok", "open files", f"at most {soft}")


def _port(host: str, port: int) -> Finding:
    from quire.server.http.listener import bind

    try:
        with bind(host, port) as listener:
            listener.listen()
    except (ConfigError, OSError) as error:
        what = error.what if isinstance(error, ConfigError) else str(error)
        fix = error.fix if isinstance(error, ConfigError) else None
        return Finding("warn", "port", what, fix or "Choose another with --port.")
    return Finding("ok", "port", f"{host}:{port} is free")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
