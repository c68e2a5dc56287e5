"""Faults of served engines: does `quire explain --url` name each?

    python -m benchmarks.explain_served [--fault NAME ...] [--repetitions R] [--busy]
        [--json FILE] [--save DIR]

Each fault is a server of a small model, clients, and what is wrong with either. --busy adds a
process that uses one core. A row says which causes were named, in order. Causes that counts prove
need no idle machine. Offline faults, and the proof of gains, are in `explain_faults`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.explain_faults import neighbour, save, slow_tokenizer
from quire.bench.results.report import write_json
from quire.bench.serving.server_process import free_port, is_ready, stop
from quire.cli.explain import ask
from quire.explain.surroundings import family
from quire.explain.whatif import explained

Body = dict[str, Any]
WINDOW, WARM = 3.0, 1.0
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
OPT = ("opt-125m", "--load-format", "dummy", "--dtype", "bfloat16")
EMBEDDED = ("embedded",)
WORDS = ("once", "upon", "a", "time", "there", "was", "little", "dog", "big", "red", "house")


@dataclass(frozen=True)
class Server:
    """A running server: its address, its process, and a folder for the fault's files."""

    url: str
    pid: int
    folder: Path


@dataclass(frozen=True)
class Fault:
    """A server and its load.

    Attributes:
        causes: right answers; the first is the one that was injected.
        body: the request with this number.
        during: what else happens while the server is watched.
        prepare: makes files in a folder, and returns further flags.
    """

    causes: tuple[str, ...]
    flags: tuple[str, ...]
    body: Callable[[int], Body]
    clients: int = 8
    path: str = COMPLETIONS
    during: Callable[[Server], Any] = lambda _: nullcontext()
    prepare: Callable[[Path], tuple[str, ...]] = lambda _: ()
    environment: dict[str, str] = field(default_factory=dict)


def text(seed: int, words: int = 12) -> str:
    drawn = random.Random(seed)
    return " ".join(drawn.choice(WORDS) for _ in range(words))


def tokens(seed: int, count: int) -> list[int]:
    drawn = random.Random(seed)
    return [drawn.randrange(10, 250) for _ in range(count)]


def asks(**fields: Any) -> Callable[[int], Body]:
    """Return bodies of short prompts with these fields."""
    usual = {"max_tokens": 48, "temperature": 0.0, "ignore_eos": True, "stream": True}
    return lambda i: {"prompt": text(i)} | usual | fields


def salted(i: int) -> Body:
    return {"prompt": tokens(0, 448), "max_tokens": 4, "cache_salt": f"user {i}"}


def shifted(i: int) -> Body:
    return {"prompt": tokens(i + 1, 32) + tokens(0, 448), "max_tokens": 4}


def shared(i: int) -> Body:
    return {"prompt": tokens(0, 448) + tokens(i + 1, 16), "max_tokens": 4}


def schema(i: int) -> Body:
    """Return a request with a schema that nobody asked for before."""
    names = [f"field_{i}_{n}" for n in range(60)]
    kinds = {name: {"enum": [f"{name}_{v}" for v in range(20)]} for name in names}
    wanted = {"type": "object", "properties": kinds, "required": names}
    return asks(max_tokens=4, structured_outputs={"json": wanted})(i)


def edited(i: int) -> Body:
    return asks(logit_bias={str(t): -1 for t in range(300)}, bad_words=["sat", "ran"])(i)


def beside_streams(i: int) -> Body:
    """Return mostly streams, and now and then a long prompt."""
    if i % 5 == 4:
        return {"prompt": tokens(i, 480), "max_tokens": 2}
    return {"prompt": tokens(i, 16), "max_tokens": 200, "ignore_eos": True, "stream": True}


def adapters(folder: Path) -> tuple[str, ...]:
    """Write four adapters; a step takes one of them."""
    from quire.bench.adapters import _write
    from quire.resolve.arguments import EngineArgs
    from quire.resolve.engine import resolve
    from quire.system.hardware import detect

    model = resolve(EngineArgs(model="embedded"), detect()).config.model
    names = []
    for name in "abcd":
        (folder / name).mkdir()
        _write(folder / name, model, 8)
        names.append(f"{name}={folder / name}")
    return ("--enable-lora", "--max-loras", "1", "--lora-modules", *names)


def certificate(folder: Path) -> tuple[str, ...]:
    key, file = str(folder / "key.pem"), str(folder / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", file], check=True, capture_output=True)
    return ("--ssl-certfile", file, "--ssl-keyfile", key)


def tokenizer(folder: Path) -> tuple[str, ...]:
    slow_tokenizer(folder)
    return ("--tokenizer", str(folder))


def template(folder: Path) -> tuple[str, ...]:
    file = folder / "slow.jinja"
    loop = "{% for i in range(60000) %}{% if i % 7919 == 7918 %} {% endif %}{% endfor %}"
    file.write_text(loop + "{% for m in messages %}{{ m.content }}{% endfor %}")
    return ("--chat-template", str(file))


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

    def burst() -> None:
        for pid, sign in itertools.product(core, (signal.SIGSTOP,)):
            os.kill(pid, sign)
        time.sleep(0.06)
        for pid in core:
            os.kill(pid, signal.SIGCONT)

    with every(0.04, burst):
        yield


@contextmanager
def quota(server: Server) -> Iterator[None]:
    """Limit the server's container to half a CPU (cgroup v1)."""
    group = Path(f"/sys/fs/cgroup/cpu/quire_{server.pid}")
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text("50000")
        for pid in family(server.pid):
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in family(server.pid):
            (group.parent / "cgroup.procs").write_text(str(pid))
        time.sleep(0.1)
        group.rmdir()


def scraped(server: Server) -> Any:
    """Ask for the metrics a hundred times per second."""
    address = urlsplit(server.url)

    def scrape() -> None:
        connection = HTTPConnection(address.hostname or "", address.port)
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        connection.close()

    return every(0.01, scrape)


TIGHT = ("--max-num-seqs", "32", "--max-model-len", "512")
FAULTS: dict[str, Fault] = {
    "healthy": Fault(("none", "memory_bandwidth", "compute"), OPT, asks(), clients=4),
    "seats": Fault(("queueing",), (*EMBEDDED, "--max-num-seqs", "2"), asks()),
    "salt": Fault(("salted_prefixes",), EMBEDDED, salted, clients=4),
    "first_line": Fault(("shifted_prefixes",), EMBEDDED, shifted, clients=4),
    "no_cache": Fault(
        ("prefix_misses",), (*EMBEDDED, "--no-enable-prefix-caching"), shared, clients=4
    ),
    "many_choices": Fault(("many_choices", "queueing"), EMBEDDED, asks(n=16)),
    "logprobs": Fault(("logprobs",), EMBEDDED, asks(logprobs=20)),
    "prompt_logprobs": Fault(
        ("prompt_logprobs",), EMBEDDED,
        lambda i: {"prompt": tokens(i, 400), "max_tokens": 2, "prompt_logprobs": 5}, clients=2,
    ),
    "penalties": Fault(
        ("penalties",), EMBEDDED, asks(presence_penalty=0.4, frequency_penalty=0.3), clients=16
    ),
    "edits": Fault(("token_edits",), EMBEDDED, edited, clients=16),
    "grammar": Fault(
        ("structures",), EMBEDDED,
        asks(max_tokens=128, structured_outputs={"regex": "([a-z]+ ){50,200}"}), clients=16,
    ),
    "compilation": Fault(("structures",), EMBEDDED, schema),
    "tiny_kv": Fault(
        ("kv_cache_too_small", "preemption"),
        (*EMBEDDED, *TIGHT, "--num-gpu-blocks-override", "48"),
        lambda i: {"prompt": tokens(i, 128), "max_tokens": 64, "ignore_eos": True}, clients=24,
    ),
    "preemption": Fault(
        ("preemption", "kv_cache_too_small"),
        (*EMBEDDED, *TIGHT, "--num-gpu-blocks-override", "64"),
        lambda i: {"prompt": tokens(i, 8), "max_tokens": 300, "ignore_eos": True}, clients=24,
    ),
    "lora": Fault(
        ("adapter_seats",), EMBEDDED, lambda i: asks(model="abcd"[i % 4])(i), prepare=adapters
    ),
    "scrapes": Fault(("scrapes",), EMBEDDED, asks(), clients=2, during=scraped),
    "stopped": Fault(("stopped",), EMBEDDED, asks(), during=stopped),
    "quota": Fault(("cpu_quota",), OPT, asks(), during=quota),
    "tls": Fault(("tls",), EMBEDDED, asks(max_tokens=2), clients=16, prepare=certificate),
    "http": Fault(("http_overload",), EMBEDDED, asks(max_tokens=1), clients=32),
    "tokenizer": Fault(
        ("tokenization",), EMBEDDED, lambda i: asks(prompt=text(i, 700), max_tokens=4)(i),
        prepare=tokenizer,
    ),
    "template": Fault(
        ("tokenization",), EMBEDDED,
        lambda i: {"messages": [{"role": "user", "content": text(i)}], "max_tokens": 2},
        path=CHAT, prepare=template,
    ),
    "long_prompts": Fault(
        ("long_prompts",), (*EMBEDDED, "--max-num-batched-tokens", "4096"), beside_streams,
        clients=10,
    ),
    "drafter": Fault(
        ("poor_drafts",),
        (*OPT, "--speculative-config", json.dumps({
            "method": "suffix", "num_speculative_tokens": 7,
            "num_speculative_tokens_per_batch_size": [[1, 64, 7]],
            "synthetic_acceptance_rate": 0.05,
        })),
        asks(),
    ),
    "ranks": Fault(("needless_ranks",), (*OPT, "--tensor-parallel-size", "2"), asks()),
    "few_threads": Fault(("few_threads",), (*OPT, "--num-threads", "1"), asks()),
    "threads": Fault(("too_many_threads",), (*OPT, "--num-threads", "8"), asks()),
    "float32": Fault(("wide_weights",), (*OPT[:3], "--dtype", "float32"), asks()),
    "reference": Fault(("reference_ops",), (*OPT, "--ops", "reference"), asks()),
    "isa": Fault(("forced_isa",), OPT, asks(), environment={"QUIRE_CPU_ISA": "portable"}),
}  # fmt: skip


@contextmanager
def serving(fault: Fault, folder: Path) -> Iterator[Server]:
    port = free_port()
    flags = [*fault.flags, *fault.prepare(folder), "--host", "127.0.0.1", "--port", str(port)]
    url = f"{'https' if '--ssl-certfile' in flags else 'http'}://127.0.0.1:{port}"
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "quire", "serve", *flags],
            stdout=log, stderr=subprocess.STDOUT, env=os.environ | fault.environment,
        )  # fmt: skip
        try:
            while not is_ready(url):
                if process.poll() is not None:
                    raise SystemExit((folder / "log").read_text()[-2000:])
                time.sleep(0.1)
            yield Server(url, process.pid, folder)
        finally:
            stop(process)


@contextmanager
def load(fault: Fault, url: str) -> Iterator[None]:
    """Send requests from all clients until the end of the block."""
    over, numbers, address = threading.Event(), itertools.count(), urlsplit(url)
    model = fault.flags[0]

    def client() -> None:
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        extra = {"context": ssl._create_unverified_context()} if kind is HTTPSConnection else {}
        while not over.is_set():
            connection = kind(address.hostname, address.port, timeout=60, **extra)
            try:
                body = {"model": model} | fault.body(next(numbers))
                head = {"Content-Type": "application/json"}
                connection.request("POST", fault.path, json.dumps(body), head)
                answer = connection.getresponse()
                if answer.status != 200:
                    raise SystemExit(answer.read()[:500].decode())
                while not over.is_set() and answer.read(4096):
                    pass
            except (OSError, HTTPException):
                time.sleep(0.05)
            finally:
                connection.close()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(fault.clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(5.0)


def watch(name: str, fault: Fault, repetitions: int, kept: Path | None) -> Iterator[dict[str, Any]]:
    """Yield one row per repetition."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if fault.prepare is certificate:
            ssl._create_default_https_context = ssl._create_unverified_context
        server = stack.enter_context(serving(fault, folder))
        stack.enter_context(load(fault, server.url))
        for repetition in range(repetitions):
            with fault.during(server):
                time.sleep(WARM)
                evidence = ask(server.url, WINDOW)
            report = explained(evidence)
            named = [finding.cause for finding in report.causes] or [report.verdict.cause]
            if kept is not None:
                save(evidence, kept / f"{name}.json")
            yield {
                "fault": name,
                "repetition": repetition,
                "first": named[0] in fault.causes,
                "in_three": bool(set(named[:3]) & set(fault.causes)),
                "causes": named[:4],
                "changes": [change.flag for change in report.changes],
                "text": report.verdict.text,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--busy", action="store_true", help="beside a process that uses one core")
    parser.add_argument("--json", type=Path, help="a .jsonl file, to append a line per verdict")
    parser.add_argument("--save", type=Path, metavar="DIR", help="keep the evidence")
    args = parser.parse_args()
    rows = []
    with neighbour() if args.busy else nullcontext():
        for name in args.fault:
            for row in watch(name, FAULTS[name], args.repetitions, args.save):
                row["busy"] = args.busy
                rows.append(row)
                mark = "right" if row["first"] else "3rd  " if row["in_three"] else "WRONG"
                print(f"{name:<16}{mark} {', '.join(row['causes'])}\n    {row['text']}", flush=True)
                if args.json is not None:
                    write_json(args.json, [row])
    first, three = (sum(row[key] for row in rows) for key in ("first", "in_three"))
    print(f"{first} of {len(rows)} first, {three} in the first three")


if __name__ == "__main__":
    main()
