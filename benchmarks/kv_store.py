"""A long prompt after a restart, and handed from one engine to another, against computing it.

    python benchmarks/kv_store.py [--model qwen3-0.6b] [--layers 8] [--repetitions 1]
        [--json FILE.jsonl]

Prints times to the first token of a prompt of 2,000 tokens, with random weights: in a new engine,
in a new engine over the first one's folder of blocks (a restart), and by a producer and a consumer
in turn, which share a folder in /dev/shm. `handoff_overhead` is the sum of the last two over the
first, less one. `lent_ms` is the time in which blocks of 32,768 tokens change hands in shared
memory, from the end of the prompt to the block table of the answer. Then blocks of 2 MiB travel by
TCP from another process, and the rate is compared with that of bytes without any protocol, and with
copying them in memory. `…_cpu_s_per_gb` are the CPU seconds of the busier side: one over
them is the rate of a stream that waits for nothing, also on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from operator import sub
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.bench.machine import circumstances
from quire.bench.results.report import jsonl, summarise, write_json
from quire.core.config import CacheConfig
from quire.core.kv_sharing import SharedKV
from quire.core.messages import AddRequest
from quire.core.options import KVTransfer, LentBlocks, RequestInputs, RequestOptions
from quire.core.request import pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.executor.uniproc import UniprocExecutor
from quire.kv.lower_tiers import BlockFolder
from quire.kv.prefix import PrefixCache
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.routing.ledger import Ledger
from quire.runner.kv_files import BlockFiles
from quire.runner.kv_peer import BLOCK, BlockServer, Peer, PeerBlocks
from quire.system.hardware import detect

LENGTH = 2000
SIZE, LENT = 16, 32_768
WORDS, BLOCKS, KEY = 2**18, 128, b"k" * 32
"""Of what travels by TCP: blocks of 2 MiB, and the key of both ends."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-0.6b", help="a preset")
    parser.add_argument("--layers", type=int, default=8, help="of the model's")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--json", type=jsonl, help="append a row of JSON to this .jsonl file")
    args = parser.parse_args()
    rates = [{"lent_ms": min(lend() for _ in range(5))} | by_tcp() for _ in range(args.repetitions)]
    samples = [
        measure(args.model, args.layers, seed) | rates[seed] for seed in range(args.repetitions)
    ]
    facts = {"model": args.model, "layers": args.layers, "input_len": LENGTH}
    row = summarise(facts, samples)
    row["restarted_over_new"] = round(row["restarted_s"] / row["new_s"], 4)
    for name in ("plain_tcp", "memcpy"):
        row[f"tcp_over_{name}"] = round(row["tcp_gb_s"] / row[f"{name}_gb_s"], 3)
        cpu = row[f"{name}_cpu_s_per_gb"] / row["tcp_cpu_s_per_gb"]
        row[f"tcp_over_{name}_by_cpu"] = round(cpu, 3)
    overhead = (row["produced_s"] + row["consumed_s"]) / row["new_s"] - 1
    row["handoff_overhead"] = round(overhead, 4)
    print(json.dumps(row, indent=2))
    if args.json:
        write_json(args.json, row | circumstances("kv_store", "python benchmarks/kv_store.py"))


def measure(model: str, layers: int, seed: int) -> dict[str, Any]:
    """Return the times of one prompt."""
    draw = Random(seed)
    prompt = [draw.randrange(3, 32_000) for _ in range(LENGTH)]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("new_s", "restarted_s"):
            core = make(model, layers, kv_offloading_dir=folder)
            found[name] = first_token(core, prompt)
            core.shutdown()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for name, role in (("produced_s", "kv_producer"), ("consumed_s", "kv_consumer")):
            config = {"kv_role": role, "kv_connector_extra_config": {"shared_storage_path": folder}}
            core = make(model, layers, kv_transfer_config=json.dumps(config))
            found[name] = first_token(core, prompt, hands_over=role == "kv_producer")
            tier = core.scheduler.stats().host_tier
            assert tier is not None
            found["blocks"] = tier.loaded
            core.shutdown()
    return found


def lend() -> float:
    """Return the milliseconds of a hand-off in shared memory, with its messages.

    Both sides know the prompt's hashes already: each engine hashes a prompt when it arrives.
    """
    count = LENT // SIZE
    pools = [PrefixCache(CacheConfig(SIZE, count + 8, first_block=first)) for first in (0, 10_000)]
    producer, consumer = (each.loans for each in pools)
    assert producer is not None
    assert consumer is not None
    hashes = [number.to_bytes(32, "big") for number in range(count)]
    own = pools[0].pool.allocate(count)
    pools[0].pool.remember(own, hashes)
    pools[0].pool.release(own)
    ledger = Ledger(SharedKV("", 10_000, 0, 2), lambda replica, message: None)
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
    start = time.perf_counter()
    sent = decode(encode(producer.lend(hashes)), type=LentBlocks)  # producer → front end
    ledger.lend(1, sent)
    came = decode(encode(sent), type=LentBlocks)  # front end → consumer
    consumer.borrow("a", came, hashes)
    table = pools[1].pool.find_run(hashes)
    pools[1].pool.share(table)
    seconds = time.perf_counter() - start
    assert table == own
    return 1e3 * seconds


def by_tcp() -> dict[str, float]:
    """Return the rates of blocks that come by TCP on loopback, of bytes without any protocol, and
    of copies of the same blocks; and the CPU seconds of each per GB."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        files = BlockFiles(BlockFolder(Path(folder), bytes(16)), 8 * WORDS, 2**32)
        names = [b"%d" % number for number in range(BLOCKS)]
        rows = [np.full(WORDS, number) for number in range(BLOCKS)]
        for name, row in zip(names, rows, strict=True):
            files.write(name, row, 0)
        files.close()
        where, child = serve(files, KEY)
        targets = [np.full_like(row, -1) for row in rows]  # not shared with the child
        blocks = PeerBlocks(Peer(where, KEY, {}))
        blocks.read(names[0], targets[0])
        blocks.expect(names)
        found = {"tcp": taken(lambda: [*map(blocks.read, names, targets)], child)}
        found["memcpy"] = taken(lambda: [*map(np.copyto, targets, rows)])
        blocks.close()
        end(child)
    found["plain_tcp"] = receive(rows)
    total = 8e-9 * WORDS * BLOCKS
    rates = {f"{name}_gb_s": total / seconds for name, (seconds, _) in found.items()}
    return rates | {f"{name}_cpu_s_per_gb": cpu / total for name, (_, cpu) in found.items()}


def taken(work: Callable[[], object], child: int | None = None) -> tuple[float, float]:
    """Return the seconds of some work, and the CPU seconds of the busier process meanwhile."""
    clocks = [time.CLOCK_PROCESS_CPUTIME_ID]
    if child is not None:
        clocks.append((~child << 3) | 2)  # Linux' clock of a process
    start, before = time.perf_counter(), [*map(time.clock_gettime, clocks)]
    work()
    seconds, after = time.perf_counter() - start, [*map(time.clock_gettime, clocks)]
    return seconds, max(map(sub, after, before))


def receive(rows: list[NDArray[np.int64]]) -> tuple[float, float]:
    """Return what `taken` does for rows that come from a child as bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    child = os.fork()
    if not child:
        other.recv(1)
        for row in rows:
            other.sendall(row.data.cast("B"))
        signal.pause()
    other.close()
    targets = [np.full_like(row, -1).data.cast("B") for row in rows]
    with connection:

        def work() -> None:
            connection.sendall(b"!")
            for target in targets:
                connection.recv_into(target, 0, socket.MSG_WAITALL)

        found = taken(work, child)
    end(child)
    return found


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def serve(files: BlockFiles, key: bytes) -> tuple[tuple[str, int], int]:
    """Serve blocks from a child; return its address and its process id."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = "127.0.0.1", int(server.getsockname()[1])
    child = os.fork()
    if not child:
        BlockServer(Peer(where, key, {}), {BLOCK: files})
        signal.pause()
    return where, child


def make(model: str, layers: int, **flags: Any) -> EngineCore:
    fewer = json.dumps({"num_hidden_layers": layers})
    limits = {"max_model_len": 2304, "max_num_seqs": 4, "kv_cache_memory_bytes": 2**30}
    args = EngineArgs(model, load_format="dummy", hf_overrides=fewer, **limits, **flags)
    config = resolve(args, detect()).config
    core = EngineCore(config, UniprocExecutor(config))
    first_token(core, [5] * 40)  # warm-up
    return core


def first_token(core: EngineCore, prompt: list[int], *, hands_over: bool = False) -> float:
    """Return the seconds until a request for one token has ended."""
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    options = RequestOptions(kv_transfer=KVTransfer(hands_over=hands_over))
    start = time.perf_counter()
    core.add(AddRequest("a", pack_tokens(prompt), params, 0.0, RequestInputs(options)))
    ended = 0.0
    while step := core.step():
        if any(output.finish_reason is not None for output in step.each()):
            ended = time.perf_counter()
    return ended - start


if __name__ == "__main__":
    main()
