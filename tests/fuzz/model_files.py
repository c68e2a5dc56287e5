"""Opens files of models that somebody has tampered with: nothing untyped may come of it.

    python -m tests.fuzz.model_files safetensors|gguf|folder|quantized --cases N [--first SEED]

Every case is a function of its seed. Each either loads, or is refused by a CheckpointError that
names a file or a tensor of it; within seconds, and within some memory beyond what the process had.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType

import msgspec

from quire.checkpoint.safetensors import SafetensorsFile
from quire.core.errors import CheckpointError, QuireError
from quire.models.forms import linear_names
from quire.models.layout import parameters
from quire.models.weights.loader import parameter_source
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import Hardware
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.fuzz import folder_cases
from tests.fuzz.gguf_cases import tampered_gguf
from tests.fuzz.safetensors_cases import tampered_safetensors

HERE = Hardware(cores=1, memory_bytes=2**34, available_bytes=2**34)
SECONDS = 10
"""After which a case hangs."""
MEMORY = 192 * 2**20
"""That the cases may take beyond what the process had: the files are some kilobytes."""
LONGEST_MESSAGE = 4000
TRACED_EVERY, TRACED_BYTES = 25, 16 * 2**20
"""Of so many cases one is traced, and may allocate no more than that."""


def open_safetensors(folder: Path, seed: int) -> None:
    path = folder / "weights.safetensors"
    path.write_bytes(tampered_safetensors(random.Random(seed)))
    file = SafetensorsFile(path)
    for name in file.tensors:
        file.read(name)
        file.release(name)


def open_gguf(folder: Path, seed: int) -> None:
    path = folder / "weights.gguf"
    path.write_bytes(tampered_gguf(random.Random(seed)))
    open_model(str(path))
    load_tokenizer(path, vocab_size=16)


def open_folder(folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    sound = dice.choice((folder_cases.DENSE, folder_cases.EXPERTS))
    path = folder / ("dense" if sound is folder_cases.DENSE else "experts")
    if not path.exists():
        sound.write(path)
    spoiled = sound.tamper(dice, path)
    try:
        open_model(str(path))
    finally:
        sound.mend(path, spoiled)


def open_model(name: str) -> None:
    """All that a start reads of a model, but for its tokenizer."""
    config = resolve(EngineArgs(model=name, max_model_len=2), HERE).config
    msgspec.msgpack.encode(config)  # as it travels to the engine core
    source = parameter_source(config)
    for parameter in parameters(config.model):
        if parameter.name in linear_names(config.model):
            source.parts(parameter.name)
        else:
            source.tensor(parameter.name)


def open_quantized(folder: Path, seed: int) -> None:
    from tests.fuzz import quantized_cases

    quantized_cases.write(random.Random(seed), folder)
    open_model(str(folder))


KINDS: dict[str, Callable[[Path, int], None]] = {
    "safetensors": open_safetensors,
    "gguf": open_gguf,
    "folder": open_folder,
    "quantized": open_quantized,
}


def outcome(kind: str, folder: Path, seed: int) -> str:
    """What comes of one case: "loaded", or the error's code.

    Raises:
        AssertionError: the error names nothing that the file has.
        Exception: whatever is not typed.
    """
    try:
        KINDS[kind](folder, seed)
    except QuireError as error:
        check_message(error)
        return error.code
    return "loaded"


def check_message(error: QuireError) -> None:
    """Raise AssertionError for an error of another type, or whose text helps nobody."""
    if not isinstance(error, (CheckpointError, FileNotFoundError)):
        raise AssertionError(repr(error))
    said = str(error)
    said.encode()  # can be printed
    known = ("weights.", "config.json", "index.json", ".safetensors", "Tensor ", "tensor")
    if len(said) > LONGEST_MESSAGE or not any(name in said for name in known):
        raise AssertionError(f"{len(said)} characters: {said[:500]}")


class HangError(BaseException):
    """A case took too long."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise HangError


def run(kind: str, first: int, cases: int) -> dict[str, int]:
    """Cases of the seeds from `first` on, and how often each outcome came.

    Raises:
        RuntimeError: a case went wrong; names its seed.
    """
    counts: Counter[str] = Counter()
    signal.signal(signal.SIGALRM, _too_long)
    in_memory = Path("/dev/shm")  # some disks take longer to cut a file than we to read it
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as folder:
        for seed in range(first, first + cases):
            signal.alarm(SECONDS)
            traced = seed % TRACED_EVERY == 0
            if traced:
                tracemalloc.start()
            try:
                counts[outcome(kind, Path(folder), seed)] += 1
            except (Exception, HangError) as error:
                what = f"{type(error).__name__}: {str(error)[:500]}"
                raise RuntimeError(f"{kind} {seed}: {what}") from error
            if traced:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                if peak > TRACED_BYTES:
                    raise RuntimeError(f"{kind} {seed}: it took {peak} bytes")
    signal.alarm(0)
    return dict(counts)


def limit_memory() -> None:
    """Refuse this process more than `MEMORY` beyond what it has now."""
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    limit = int(status["VmSize"].split()[0]) * 1024 + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    if given.kind == "quantized":
        import_module("tests.fuzz.quantized_cases")  # torch takes more than the limit
    limit_memory()
    json.dump(run(given.kind, given.first, given.cases), sys.stdout)


if __name__ == "__main__":
    main()
