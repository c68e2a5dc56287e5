"""A large vocabulary takes little memory while it is read, and what that frees is returned."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from itertools import islice, product
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from quire.text.tokenizers.token_bytes import CHAR_OF_BYTE

MERGES = 30_000
MOST_LEFT = 2 * 2**20
MOST_STAYS = 180
MOST_WHILE_READ = 300
"""Bytes per token: 119 and 197 here, 431 and 903 with the library's own reader."""
PROGRAM = """
import sys
from pathlib import Path
from quire.system.heap import trim_heap
from quire.text.tokenizers import tokenizer_files
from quire.text.tokenizers.tokenizer import load_tokenizer

def kib(name):
    status = Path("/proc/self/status").read_text()
    return int(status.split(name + ":")[1].split()[0])

tokenizer_files  # what it imports counts before
start = kib("VmRSS")
tokenizer = load_tokenizer(Path(sys.argv[1]))
before, peak = kib("VmRSS"), kib("VmHWM")
trim_heap()
print(1024 * (before - kib("VmRSS")), 1024 * (before - start), 1024 * (peak - start))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc's own")
def test_a_tokenizer_takes_and_leaves_little_memory(tmp_path: Path) -> None:
    letters = [CHAR_OF_BYTE[byte] for byte in range(256)]
    merges = list(islice(product(letters, letters), MERGES))
    tokens = letters + [left + right for left, right in merges]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    left, stays, while_read = map(int, found.split())
    assert left < MOST_LEFT
    assert stays < MOST_STAYS * MERGES
    assert while_read < MOST_WHILE_READ * MERGES
