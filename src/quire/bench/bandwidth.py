"""Measure the read bandwidth of this machine's memory, which bounds every decode step.

`python -m quire.bench.bandwidth --threads N` reads the memory once per line of standard input, and
prints GB/s. It is a separate process so that its buffer does not count in the engine's peak memory.

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
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from quire.core.errors import QuireError

BUFFER_BYTES = 2**30


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


@contextlib.contextmanager
def reading(threads: int, buffer_bytes: int = BUFFER_BYTES) -> Iterator[Callable[[], float]]:
    """Start another process, and yield a function that has it read once and returns GB/s.

    Raises:
        QuireError: the process failed.
    """
    command = [sys.executable, "-m", "quire.bench.bandwidth"]
    command += ["--threads", str(threads), "--buffer-bytes", str(buffer_bytes)]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):

        def read() -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                os.write(process.stdin.fileno(), b"\n")  # no buffer, which would fail in close()
            if line := process.stdout.readline():
                return float(line)
            log.seek(0)
            lines = log.read().strip().splitlines()
            why = lines[-1] if lines else f"its process ended with status {process.wait()}"
            raise QuireError(f"The memory bandwidth could not be measured: {why}")

        try:
            read()  # warms up
            yield read
        finally:
            process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the memory's GB/s for each line of stdin.")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--buffer-bytes", type=int, default=BUFFER_BYTES)
    given = parser.parse_args()
    reader = Reader(given.threads, given.buffer_bytes)
    for _ in sys.stdin:
        print(reader.read(), flush=True)
