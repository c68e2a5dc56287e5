"""Causes in the system around the engine: signals, memory, disks, clocks."""

from __future__ import annotations

from quire.explain.causes.account import loop_slept
from quire.explain.causes.case import WORTH, Case, Kind, Suspect, advice, setting, suspect
from quire.explain.report import Change

PAUSED = 0.15
"""Share of the time for which the API process must be stopped: a timer may be late, too."""
SWAPPING = 1e6
"""Bytes/s to and from swap from which a machine is swapping."""
SWAP_SPEED = 3e8
"""Bytes/s of a usual disk, if the kernel does not count the time that threads wait for it."""
COPY_SPEED = 5e10
"""Bytes/s from the host to a GPU over PCIe 5."""
FULL_FILES = 0.9
"""Share of the permitted files from which new connections are in danger."""
LOADING = 0.2
"""Share of the sequences that wait for their KV blocks, from which the disk is a cause."""
SLOW_CLOCK = 0.75
SMALL_PAGES = 0.08
"""Share of the model's time that address translation takes with pages of 4 KiB: reading weights
at 28 instead of 30.6 GB/s on two cores."""
REMOTE, REMOTE_COST = 0.3, 0.4
"""Memory of another node is read at about 60 % of the speed."""
NO_HUGE_PAGES = {
    "never": (
        "transparent_hugepage is 'never'",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    ),
    "refused": ("prctl PR_SET_THP_DISABLE", "a start without PR_SET_THP_DISABLE"),
}
"""By the setting: what refuses them, and the remedy."""


def stopped(case: Case) -> Suspect | None:
    """A signal stops the engine's processes again and again."""
    around, host = case.around, case.host
    if around.tracer:
        return None  # it stops threads all the time
    lost, which = around.stopped, f"A process of the engine{_named(case, around.halted)}"
    # Another thread may have waited for a CPU with the interpreter's lock, or its code slept.
    paused = around.paused - (host.front_waited / host.seconds if host else 0.0)
    paused -= loop_slept(case)
    if paused >= max(PAUSED, lost):
        lost, which = paused, "The API process"
    why = "continues it; then find out who stops it (a freezer, a debugger, Ctrl-Z)"
    return suspect(
        f"{which} was stopped (SIGSTOP, a freezer, a debugger) for {lost:.0%} of the time.",
        lost,
        advice("kill -CONT PID", why, lost),
    )


def _named(case: Case, pid: int) -> str:
    """Return a process's number in brackets, with that of its replica and pipeline stage."""
    config, host = case.config, case.host
    workers = [w.pid for w in host.workers] if host is not None else []
    names = [str(pid)] if pid else []
    if pid in workers:
        rank, stages = workers.index(pid), config.pipeline_parallel_size
        if len(case.args.replicas) > 1:
            names.append(f"replica {rank // (config.tensor_parallel_size * stages)}")
        if stages > 1:
            names.append(f"stage {rank // config.tensor_parallel_size % stages}")
    return f" ({', '.join(names)})" if names else ""


def traced(case: Case) -> Suspect | None:
    """A debugger or strace watches the engine's system calls."""
    around, host = case.around, case.host
    if not around.tracer:
        return None
    # While the tracer works, the thread that it has stopped does not.
    busy = [n.cpus for n in host.neighbours if n.pid == around.tracer] if host else []
    lost = min(0.95, max([WORTH, *busy]))
    return suspect(
        f"Process {around.tracer} traces the engine (strace, gdb, a profiler): each system call or "
        "breakpoint stops a thread until the tracer has seen it.",
        lost,
        advice(f"the end of process {around.tracer}", "no longer stops threads", lost),
    )


def python_debugging(case: Case) -> Suspect | None:
    """Python checks or watches each allocation, call or line."""
    found, w = case.around.debugging, case.window
    if not found:
        return None
    core = w.share("schedule", "prepare", "sample", "update", "core_send")
    loop = w.share("http", "detokenize", "send")
    lost = max(WORTH, 0.5 * min(1.0, max(core, loop)))  # such settings double Python's time
    names = ", ".join(found)
    return suspect(
        f"Python is slowed for debugging ({names}). The core spends {core:.0%} of the time in "
        f"Python, and the API process {min(1.0, loop):.0%}.",
        lost,
        advice(f"a start without {names}", "runs Python at its usual speed", lost),
    )


def swapping(case: Case) -> Suspect | None:
    """The machine moves the engine's memory to disk and back."""
    around = case.around
    if around.swap_rate < SWAPPING:
        return None
    lost = min(0.9, max(_disk_share(case), around.swap_rate / SWAP_SPEED))
    return suspect(
        f"The machine swaps {around.swap_rate / 1e6:,.0f} MB/s, and "
        f"{around.swapped / 2**20:,.0f} MiB of the engine are in swap.",
        lost,
        _less_memory(case, "makes the KV cache smaller: the engine stays in memory", lost),
    )


def memory_pressure(case: Case) -> Suspect | None:
    """Processes wait for the kernel to reclaim memory, as under a container's limit."""
    around = case.around
    lost = min(0.95, around.memory_wait / case.window.seconds)
    if around.swap_rate >= SWAPPING:
        return None  # see `swapping`
    why = "makes the KV cache smaller; or raise the container's memory limit"
    return suspect(
        f"For {lost:.0%} of the time processes waited for the kernel to free memory: files are "
        "dropped from it and read again.",
        lost,
        _less_memory(case, why, lost),
        kind=Kind.WASTE,
    )


def _less_memory(case: Case, why: str, lost: float) -> Change:
    """Return 0.7 times the engine's memory as a change."""
    share = case.args.memory_share(case.config.device)
    less = max(0.1, round(share * 0.7, 2))
    return setting(why, lost, gpu_memory_utilization=less)


def open_files(case: Case) -> Suspect | None:
    """A process of the engine has nearly as many open files as it may have."""
    around = case.around
    share = around.open_files / max(1, around.most_files)
    if share < FULL_FILES:
        return None
    return suspect(
        f"A process of the engine has {around.open_files} files and connections open, and may have "
        f"{around.most_files} (ulimit -n): new connections wait or fail.",
        share,
        advice("ulimit -n 65536", "before the start; each connection takes one"),
        floor=share,
    )


def offload_reads(case: Case) -> Suspect | None:
    """Weights that --cpu-offload-gb left elsewhere are read again in each step."""
    around, args = case.around, case.args
    if args.cpu_offload_gb and case.on_device:
        return _offload_copies(case)
    if not args.cpu_offload_gb or not around.read_rate:
        return None
    lost = max(_disk_share(case), case.saved(case.usual()))
    size = args.cpu_offload_gb * 2**30
    if around.free > 1.2 * size:
        keep = 0.0
        why = f"keeps all weights in memory; {around.free / 2**30:.1f} GiB are free"
    else:
        keep = max(0.0, round(args.cpu_offload_gb - 0.8 * around.free / 2**30, 1))
        why = "leaves only as much on disk as memory requires"
    return suspect(
        f"The engine reads {around.read_rate / 1e6:,.0f} MB/s from disk: of the weights, "
        f"{args.cpu_offload_gb:g} GiB are outside of memory, and the file cache cannot hold them.",
        lost,
        setting(why, lost, cpu_offload_gb=keep),
    )


def _offload_copies(case: Case) -> Suspect | None:
    """Return that a GPU copies weights from the host's memory in each step."""
    w, size = case.window, case.args.cpu_offload_gb
    rate = size * 2**30 * w.steps / w.seconds
    lost = min(case.model, rate / COPY_SPEED)
    why = "keeps all weights on the GPU; a smaller type (--quantization) may make room"
    return suspect(
        f"{size:g} GiB of the weights are in the host's memory and are copied to the GPU in each "
        f"step: {rate / 1e9:,.0f} GB/s.",
        lost,
        setting(why, lost, cpu_offload_gb=0.0),
    )


def slow_disk(case: Case) -> Suspect | None:
    """Requests wait for KV blocks from files."""
    w, args = case.window, case.args
    if not (w.loaded_blocks or w.loading) or not args.kv_offloading_dir or w.unsaved_blocks:
        return None  # see `failed_writes`
    all_of_them = w.running + w.waiting + w.loading
    loading = w.loading / max(1e-9, all_of_them)  # the core looks for them in empty steps
    lost = max(_disk_share(case), loading)
    more = max(1.0, 2 * args.kv_offloading_size)
    why = "keeps more blocks in host memory; or move --kv-offloading-dir to a faster disk"
    return suspect(
        f"{w.loading:.1f} of {all_of_them:.1f} sequences wait for their KV blocks, of "
        f"which {w.loaded_blocks:,} came from host memory or files.",
        lost,
        setting(why, lost, kv_offloading_size=more),
        kind=Kind.PROVEN if loading >= LOADING else Kind.WASTE,
    )


def slow_clock(case: Case) -> Suspect | None:
    """The CPUs run below their highest speed while they compute."""
    around = case.around
    if not 0.0 < around.clock < SLOW_CLOCK or case.model < 0.5:
        return None
    lost = case.saved(around.clock)
    return suspect(
        f"The CPUs run at {around.clock:.0%} of their highest speed: their governor, their power "
        "limit or their temperature slows them.",
        lost,
        advice("cpupower frequency-set -g performance", "or better cooling", lost),
        kind=Kind.WASTE,
    )


def huge_pages_off(case: Case) -> Suspect | None:
    """The system gives no huge pages."""
    around = case.around
    if around.huge_pages not in NO_HUGE_PAGES:
        return None
    lost = max(WORTH, SMALL_PAGES * case.model)  # a fault of the settings
    why, flag = NO_HUGE_PAGES[around.huge_pages]
    return suspect(
        f"The system gives no huge pages ({why}), so reading weights and KV blocks waits for "
        f"address translation: about {lost:.0%} of the time.",
        lost,
        advice(flag, "then start the engine again", lost),
    )


def remote_memory(case: Case) -> Suspect | None:
    """The engine's memory is on another memory node than its CPUs."""
    around, config = case.around, case.config
    if around.nodes < 2 or around.remote < REMOTE:
        return None
    lost = case.model * around.remote * REMOTE_COST
    ranks = around.nodes
    changes = [
        advice("numactl --cpunodebind=0 --membind=0", "keeps CPUs and memory together", lost)
    ]
    if config.tensor_parallel_size < ranks:
        why = f"gives each of the {ranks} memory nodes its own share of the model"
        changes.insert(0, setting(why, lost, tensor_parallel_size=ranks))
    return suspect(
        f"{around.remote:.0%} of the engine's memory is on another of {around.nodes} memory nodes "
        "than its CPUs.",
        lost,
        *changes,
        kind=Kind.WASTE,
    )


def _disk_share(case: Case) -> float:
    """Return the share of the window that the engine's threads waited for disks."""
    threads = max(1, case.config.num_threads)
    return min(0.95, case.around.disk_wait / (threads * case.window.seconds))
