"""Measure the read bandwidth of this machine's memory, which bounds every decode step.

`python -m quire.bench.bandwidth --threads N` prints GB/s. It is a separate process so that its
buffer does not count in the engine's peak memory.

Each thread ORs its slice of one int64 buffer that is larger than any cache. This only reads, needs
almost no arithmetic, releases Python's lock, and uses exactly the requested threads. It was the
fastest of the reductions tried (sum, max, dot and matrix-vector product in NumPy and torch). The
buffer is in huge pages, like packed weights. In pages of 4 KiB a Zen 4 read a third less, and the
kernels would have been faster than this "limit".
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

        # Private, because shared memory gets no huge pages by default.
        memory = mmap.mmap(-1, buffer_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)
        buffer = np.frombuffer(memory, dtype=np.int64)
        buffer.fill(1)  # allocates every page
        self._nbytes = buffer.nbytes
        self._slices = np.array_split(buffer, threads)
        self._reduce = np.bitwise_or.reduce

    def read(self) -> float:
        """Read once; return GB/s (10⁹ bytes per second)."""
        workers = [threading.Thread(target=self._reduce, args=(part,)) for part in self._slices]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return self._nbytes / (time.perf_counter() - start) / 1e9


def read_bandwidth(threads: int, buffer_bytes: int = BUFFER_BYTES, passes: int = PASSES) -> float:
    """Return the best of `passes` reads of `buffer_bytes`, in GB/s (10⁹ bytes per second).

    The result is a limit, and other load can only lower a read. So the best counts, not the mean.
    """
    reader = Reader(threads, buffer_bytes)
    return max(reader.read() for _ in range(passes))


def measure(threads: int, buffer_bytes: int = BUFFER_BYTES) -> float:
    """Return `read_bandwidth` of a fresh process, in GB/s."""
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
