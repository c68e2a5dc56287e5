"""How fast this machine's memory can be read: the floor under every decode step.

Run as `python -m quire.bench.bandwidth --threads N`, it prints GB/s; a process of its own keeps
the buffer out of the engine's peak memory.

Each thread ORs together its slice of one buffer of int64, larger than any cache. It is a read-only
pass with next to no arithmetic, NumPy releases the interpreter's lock for it, and the number of
threads is exactly the number asked for. Of the reductions tried (NumPy and torch: sum, max,
dot, matrix-vector product, over float32 and integers), it was the fastest with exact threads;
`torch.sum` over float32 reaches only half of what the memory gives. The buffer lies in huge pages
where the system has them, as packed weights do: in pages of 4 KiB a Zen 4 read a third less, and
the kernels would have passed below the floor.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import subprocess
import sys
import threading
import time

from quire.core.errors import QuireError

BUFFER_BYTES = 2**30
PASSES = 8


class Reader:
    """Reads a buffer with `threads` threads."""

    def __init__(self, threads: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        import numpy as np

        # Private: the system gives huge pages to shared memory only where it is told to.
        memory = mmap.mmap(-1, buffer_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
        buffer = np.frombuffer(memory, dtype=np.int64)
        buffer.fill(1)  # so that every page exists
        self._nbytes = buffer.nbytes
        self._slices = np.array_split(buffer, threads)
        self._reduce = np.bitwise_or.reduce

    def read(self) -> float:
        """One pass, in GB/s (10⁹ bytes a second)."""
        workers = [threading.Thread(target=self._reduce, args=(part,)) for part in self._slices]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return self._nbytes / (time.perf_counter() - start) / 1e9


def read_bandwidth(threads: int, buffer_bytes: int = BUFFER_BYTES, passes: int = PASSES) -> float:
    """Best of `passes` reads of `buffer_bytes`, in GB/s (10⁹ bytes a second).

    The best, not the mean: it stands for a limit, and interference can only lower it.
    """
    reader = Reader(threads, buffer_bytes)
    return max(reader.read() for _ in range(passes))


def measure(threads: int, buffer_bytes: int = BUFFER_BYTES) -> float:
    """`read_bandwidth` in a fresh process; GB/s."""
    command = [sys.executable, "-m", "quire.bench.bandwidth"]
    command += ["--threads", str(threads), "--buffer-bytes", str(buffer_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise QuireError(f"The memory bandwidth could not be measured: {done.stderr.strip()}")
    return float(done.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print this machine's read bandwidth in GB/s.")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--buffer-bytes", type=int, default=BUFFER_BYTES)
    given = parser.parse_args()
    print(read_bandwidth(given.threads, given.buffer_bytes))
