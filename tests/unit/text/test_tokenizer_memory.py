"""What building a large vocabulary frees goes back to the system."""

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
PROGRAM = """
import sys
from pathlib import Path
from quire.system.heap import trim_heap
from quire.text.tokenizers.tokenizer import load_tokenizer

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

tokenizer = load_tokenizer(Path(sys.argv[1]))
before = resident()
trim_heap()
print(before - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc's own")
def test_a_loaded_tokenizer_leaves_no_freed_memory(tmp_path: Path) -> None:
    letters = [CHAR_OF_BYTE[byte] for byte in range(256)]
    merges = list(islice(product(letters, letters), MERGES))
    tokens = letters + [left + right for left, right in merges]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    left = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(left) < MOST_LEFT
