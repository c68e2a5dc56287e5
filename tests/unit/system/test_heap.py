"""One heap for all threads of a process: counted by the C library itself."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, threading
from quire.system.heap import share_one_heap

if sys.argv[1] == "one":
    share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
held, done = threading.Barrier(5), threading.Event()

def hold():
    libc.malloc(50_000)  # less than what glibc maps by itself
    held.wait()
    done.wait()

threads = [threading.Thread(target=hold) for _ in range(4)]
for thread in threads:
    thread.start()
held.wait()
libc.fdopen.restype = ctypes.c_void_p
out = libc.fdopen(1, b"w")
libc.malloc_info(0, ctypes.c_void_p(out))
libc.fflush(ctypes.c_void_p(out))
done.set()
"""


def heaps(how: str) -> int:
    command = [sys.executable, "-c", PROGRAM, how]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return told.count("<heap nr=")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="glibc's own")
def test_threads_share_the_first_heap() -> None:
    assert heaps("one") == 1
    assert heaps("many") > 1
