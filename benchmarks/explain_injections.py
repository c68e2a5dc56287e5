"""Inject faults into a served engine: what happens to its processes, and files that slow it."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import make_checkpoint
from quire.system.proc import family

_PR_SET_THP_DISABLE = 41
RULES = 2000
"""Of the slow tokenizer: each passes over the text."""


@dataclass(frozen=True)
class Server:
    """A running server: its address, its process, and a folder for the fault's files."""

    url: str
    pid: int
    folder: Path


def _adapters(folder: Path, letters: str, rank: int) -> tuple[str, ...]:
    from quire.bench.adapters import _write
    from quire.resolve.arguments import EngineArgs
    from quire.resolve.engine import resolve
    from quire.system.hardware import detect

    model = resolve(EngineArgs(model="embedded"), detect()).config.model
    names = []
    for name in letters:
        (folder / name).mkdir()
        _write(folder / name, model, rank)
        names.append(f"{name}={folder / name}")
    return ("--enable-lora", "--lora-modules", *names)


def wide_adapter(folder: Path) -> tuple[str, ...]:
    """Write an adapter of rank 64."""
    return ("--max-lora-rank", "64", *_adapters(folder, "a", 64))


def adapters(folder: Path) -> tuple[str, ...]:
    """Write four adapters; a step takes one of them."""
    return ("--max-loras", "1", *_adapters(folder, "abcd", 8))


def kv_folder(folder: Path) -> tuple[str, ...]:
    return ("--kv-offloading-dir", str(folder / "kv"), "--kv-offloading-size", "0.001")


def certificate(folder: Path) -> tuple[str, ...]:
    key, file = str(folder / "key.pem"), str(folder / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", file], check=True, capture_output=True)
    return ("--ssl-certfile", file, "--ssl-keyfile", key)


def tokenizer(folder: Path) -> tuple[str, ...]:
    """Write a tokenizer of bytes with many rules; the last one shortens the text much."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    rules = [normalizers.Replace(Regex(rf"(?i)[aeiou]{{3}}\w+z{i}q\b"), "") for i in range(RULES)]
    rules.append(normalizers.Replace(Regex(r"(?:\w+ ){20}"), "w "))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {letter: i for i, letter in enumerate(sorted(alphabet))}
    slow = Tokenizer(models.BPE(vocabulary, []))
    slow.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    slow.decoder = decoders.ByteLevel()
    slow.normalizer = normalizers.Sequence(rules)
    slow.save(str(folder / "tokenizer.json"))
    return ("--tokenizer", str(folder))


def template(folder: Path) -> tuple[str, ...]:
    file = folder / "slow.jinja"
    loop = "{% for i in range(60000) %}{% if i % 7919 == 7918 %} {% endif %}{% endfor %}"
    file.write_text(loop + "{% for m in messages %}{{ m.content }}{% endfor %}")
    return ("--chat-template", str(file))


def checkpoint(folder: Path) -> tuple[str, ...]:
    """Write weights of which an engine keeps packed forms, unless an earlier start had them."""
    if not (folder / "model").exists():
        make_checkpoint.write("qwen3-0.6b", folder / "model")
    return ("--dtype", "bfloat16", "--max-model-len", "512")


def mistuned(folder: Path) -> tuple[str, ...]:
    """Write the values of one row's products for any number of rows, as if for another load."""
    from quire.explain.limits import limits_file
    from quire.ops.native.kernels import available_isas
    from quire.ops.tuning import GemmTuning, TunedGemm, save_tuning, untuned
    from quire.system.hardware import detect

    shutil.copy(limits_file(), folder)
    wrong = GemmTuning(pass_rows=1)
    shapes = (2304, 768), (768, 768), (3072, 768), (768, 3072)
    products = [TunedGemm("bf16", n, k, 0, (2, 1 << 40), wrong, 0.1) for n, k in shapes]
    known = untuned(available_isas()[-1], detect().cores)
    save_tuning(known.with_results((), products, ()), folder / "tuned")
    return ()


@contextmanager
def neighbour(pinned: str = "") -> Iterator[None]:
    """Run a process that computes without pause; `pinned` is a command that holds it to CPUs."""
    # By way of a shell, so that it is nobody's child, least of all the engine's.
    shell = f"{pinned} {sys.executable} -c 'while True: pass' >/dev/null 2>&1 & echo $!"
    started = int(subprocess.run(["sh", "-c", shell], capture_output=True, check=True).stdout)
    try:
        yield
    finally:
        os.kill(started, signal.SIGKILL)


@contextmanager
def small_pages() -> Iterator[None]:
    """Refuse huge pages to processes that this one starts."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_THP_DISABLE, 0, 0, 0, 0)


@contextmanager
def every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` again and again until the end of the block."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stop the core for 60 of each 100 ms."""
    core = family(server.pid)[1:]
    with every(0.04, lambda: _burst(core)):
        yield


@contextmanager
def stopped_front(server: Server) -> Iterator[None]:
    """Stop the API process for 60 of each 100 ms."""
    with every(0.04, lambda: _burst([server.pid])):
        yield


def _burst(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.06)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def traced(server: Server) -> Iterator[None]:
    """Trace the system calls of all processes with strace."""
    command = ["strace", "-f", "-o", "/dev/null", "-p"]
    tracers = [
        subprocess.Popen([*command, str(pid)], stderr=subprocess.DEVNULL)
        for pid in family(server.pid)
    ]
    try:
        yield
    finally:
        for tracer in tracers:
            tracer.send_signal(signal.SIGINT)
            tracer.wait()


@contextmanager
def grouped(pids: list[int], controller: str, **settings: str) -> Iterator[Path]:
    """Hold processes in a new cgroup (version 1) with these settings."""
    base = Path("/sys/fs/cgroup") / controller
    group, own = base / f"quire_{pids[0]}", base / _cgroup(controller)
    group.mkdir()
    try:
        for name, value in settings.items():
            (group / name.replace("__", ".")).write_text(value)
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        while left := (group / "cgroup.procs").read_text().split():
            for member in left:
                with suppress(OSError):
                    (own / "cgroup.procs").write_text(member)
            time.sleep(0.05)
        group.rmdir()


def _cgroup(controller: str) -> str:
    """Return this process's cgroup of a controller, relative to its root."""
    rows = (row.split(":", 2) for row in Path("/proc/self/cgroup").read_text().splitlines())
    return next(path.lstrip("/") for _, names, path in rows if controller in names.split(","))


@contextmanager
def stopped_last(server: Server) -> Iterator[None]:
    """Stop one of several processes that compute, a stage or a replica, for 60 of each 100 ms."""
    with every(0.04, lambda: _burst(family(server.pid)[-1:])):
        yield


@contextmanager
def quota(server: Server) -> Iterator[None]:
    """Limit the server's container to half a CPU."""
    with grouped(family(server.pid), "cpu", cpu__cfs_quota_us="50000"):
        yield


@contextmanager
def core_quota(server: Server) -> Iterator[None]:
    """Limit the core alone, to a fifth of a CPU."""
    with grouped(family(server.pid)[1:], "cpu", cpu__cfs_quota_us="20000"):
        yield


@contextmanager
def slow_reads(server: Server) -> Iterator[None]:
    """Let the server read 100 kB/s from the disk of its folder, and keep none of it in memory."""

    def forget() -> None:
        for file in (server.folder / "kv").rglob("*"):
            with suppress(OSError):
                handle = os.open(file, os.O_RDONLY)
                os.fdatasync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(handle)

    device = os.stat(server.folder).st_dev
    limit = f"{os.major(device)}:{os.minor(device)} 100000"
    limits = {"blkio__throttle__read_bps_device": limit}
    with every(0.1, forget), grouped(family(server.pid), "blkio", **limits):
        yield


@contextmanager
def full_disk(server: Server) -> Iterator[None]:
    """Lay a disk of 256 kB over the server's folder of KV blocks."""
    folder = server.folder / "kv"
    models = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=True)
    try:
        for model in models:
            (folder / model).mkdir()
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def low_weight(server: Server) -> Iterator[None]:
    """Give the server's container little weight, beside a busy process."""
    with grouped(family(server.pid), "cpu", cpu__shares="60"), neighbour():
        yield


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """Freeze the core's container for 60 of each 100 ms."""
    with grouped(family(server.pid)[1:], "freezer") as group:

        def burst() -> None:
            (group / "freezer.state").write_text("FROZEN")
            time.sleep(0.06)
            (group / "freezer.state").write_text("THAWED")

        with every(0.04, burst):
            yield


def _tasks(pids: list[int]) -> list[int]:
    return [int(task) for pid in pids for task in os.listdir(f"/proc/{pid}/task")]


def held_to_one_cpu(whole: bool) -> Callable[[Server], Any]:
    """Return an injection that leaves all processes, or only those behind the API, one CPU."""

    @contextmanager
    def inject(server: Server) -> Iterator[None]:
        usual = os.sched_getaffinity(server.pid)

        def set_all(cpus: set[int]) -> None:
            for task in _tasks(family(server.pid)[0 if whole else 1 :]):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(task, cpus)

        set_all({min(usual)})
        try:
            yield
        finally:
            set_all(usual)

    return inject


@contextmanager
def low_priority(server: Server) -> Iterator[None]:
    """Give the server's threads the lowest priority, beside a busy process."""

    def set_all(priority: int) -> None:
        for task in _tasks(family(server.pid)):
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, task, priority)

    set_all(19)
    try:
        with neighbour():
            yield
    finally:
        set_all(0)


@contextmanager
def neighbours(server: Server) -> Iterator[None]:
    """Run two processes that compute without pause."""
    with neighbour(), neighbour():
        yield


@contextmanager
def beside_the_last(server: Server) -> Iterator[None]:
    """Run a process on the last CPU, which is one rank's or one replica's own."""
    with neighbour(f"taskset --cpu-list {max(os.sched_getaffinity(server.pid))}"):
        yield


@contextmanager
def few_files(server: Server) -> Iterator[None]:
    """Leave the server few file descriptors, and hold connections that take the most of them."""
    address = urlsplit(server.url)
    taken = len(os.listdir(f"/proc/{server.pid}/fd"))
    usual = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (taken + 14, usual[1]))
    try:
        with ExitStack() as held:
            for _ in range(10):
                opened = socket.create_connection((address.hostname, address.port), 5)
                held.enter_context(opened)
            yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, usual)


def asked_for(path: str, seconds: float, clients: int = 1) -> Callable[[Server], Any]:
    """Return an injection in which each client sends a GET request at this interval."""

    @contextmanager
    def inject(server: Server) -> Iterator[None]:
        address = urlsplit(server.url)

        def ask() -> None:
            with suppress(OSError):
                connection = HTTPConnection(address.hostname or "", address.port, timeout=5)
                connection.request("GET", path)
                connection.getresponse().read()
                connection.close()

        with ExitStack() as asking:
            for _ in range(clients):
                asking.enter_context(every(seconds, ask))
            yield

    return inject
