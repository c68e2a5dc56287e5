"""Packed weights on disk, so that a model that was started before starts faster; torch-free.

One file a model, dtype and quantization:

    [64 bytes of ASCII: SHA-256 of the header][8 bytes: its length n, little-endian]
    [n bytes: JSON][zeros up to a multiple of 4096][the weights, as they lie in memory]

The header names the weights, their shapes, the size of the file and a checksum of the data. The
order in memory is the same for every instruction set. What is damaged is packed again; nothing
that fails here fails a start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from quire.checkpoint.source import resolve
from quire.checkpoint.weight_files import model_files, samples
from quire.core.config import ON_TORCH, EngineConfig
from quire.core.errors import QuireError
from quire.models.memory import loaded_bytes
from quire.system import env

if TYPE_CHECKING:
    from quire.models.weights.offload import WeightOffload
    from quire.ops.packed_file import StoredLinear

logger = logging.getLogger(__name__)

FORMAT = 5
"""To be raised whenever the order or the rounding of packed weights, or the checksum, changes."""
SUFFIX = ".packed"
SMALLEST_BYTES = 64 * 2**20
"""A model with fewer bytes of weights is packed before anybody notices."""
FREE_SHARE = 2
"""A file takes at most one part in this many of what is free on the disk."""
STALE_SECONDS = 3600
"""Age of an unfinished file whose writer must have died."""
_PREFIX = 72
_ALIGN = 4096


def open_cache(config: EngineConfig, offload: WeightOffload | None = None) -> PackCache | None:
    """Open the cache of `config`'s model and start to read it; None if it has none.

    What `offload` names is streamed from the file.
    """
    size = packable_bytes(config)
    if (
        not 0 < size <= config.pack_cache_bytes
        or size - (offload.saved_bytes if offload else 0) > config.memory_budget_bytes
    ):
        return None
    try:
        key = model_key(config)
    except (OSError, QuireError):
        return None  # loading will say what is wrong
    cache = PackCache(packed_folder(), key, config.pack_cache_bytes, config.dtype)
    streamed = offload.weights if offload else {}
    cache.start(max(1, config.num_threads - 1), streamed)  # one core imports meanwhile
    return cache


def packable_bytes(config: EngineConfig) -> int:
    """Return the bytes of weights whose packed form is kept if it may; 0 if it never is."""
    size = loaded_bytes(config)
    small = size < SMALLEST_BYTES
    return 0 if config.load_format == "dummy" or config.ops in ON_TORCH or small else size


def packed_folder() -> Path:
    """Return the folder of the packed weights of all models."""
    return env.cache_dir() / "packed"


def is_kept(config: EngineConfig) -> bool:
    """Return whether the folder has the packed weights, or somebody writes them."""
    try:
        key = model_key(config)
    except (OSError, QuireError):
        return False
    return any(packed_folder().glob(f"{key}{SUFFIX}")) or any(packed_folder().glob(f".{key}.*"))


def model_key(config: EngineConfig) -> str:
    """Return a digest of all that packed weights depend on, except the files' location.

    A file counts with its name, size, time of change and samples of its content.
    """
    path = resolve(config.model_path, load_format=config.load_format).path
    assert path is not None
    quantized = [config.quantization, config.quantization_config]
    facts = [FORMAT, to_builtins(config.model), config.dtype, quantized]
    if config.lora is not None:  # a gate and what it gates lie apart then
        facts.append("adapters")
    if config.share is not None:
        facts.append([config.share.rank, to_builtins(config.share.model)])
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for file in model_files(path):
        stat = file.stat()
        digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
        for sample in samples(file):
            digest.update(sample)
    return digest.hexdigest()


class PackCache:
    """The file of one model in a folder of at most `limit` bytes."""

    def __init__(self, folder: Path, key: str, limit: int, dtype: str) -> None:
        self.path = folder / (key + SUFFIX)
        self._limit = limit
        self._dtype = dtype
        self._linears: dict[str, StoredLinear] = {}
        self._reader: threading.Thread | None = None
        self._writer: threading.Thread | None = None

    def start(self, threads: int, streamed: Collection[str] = ()) -> None:
        """Read the file, if there is one, in the background, but stream the weights `streamed`."""
        self._reader = threading.Thread(
            target=self._read, args=(threads, streamed), name="pack-cache", daemon=True
        )
        self._reader.start()

    def linears(self) -> Mapping[str, StoredLinear]:
        """Return parameter → packed weight, once all are read; empty without a sound file."""
        if self._reader is not None:
            self._reader.join()
        return self._linears

    def drop(self) -> None:
        """Forget the weights, and the file, which does not fit the model."""
        self._linears = {}
        _remove(self.path)

    def save(self, linears: Mapping[str, StoredLinear]) -> None:
        """Write the file in the background, for the next start."""
        if linears:
            self._writer = threading.Thread(
                target=self._write, args=(dict(linears),), name="pack-cache"
            )
            self._writer.start()

    def close(self) -> None:
        """Wait until all reads and writes have ended, and release the weights."""
        for thread in (self._reader, self._writer):
            if thread is not None:
                thread.join()
        self._linears = {}

    def _read(self, threads: int, streamed: Collection[str]) -> None:
        try:
            with self.path.open("rb", buffering=0) as file:
                self._linears = _read_file(file.fileno(), self._dtype, threads, streamed)
                os.utime(file.fileno())  # the least recently used go first
        except FileNotFoundError:
            return
        except Exception as error:  # whatever it is, the checkpoint is still there
            logger.warning("The packed weights in %s are not used: %s", self.path, error)
            _remove(self.path)
            return
        size = sum(linear.nbytes for linear in self._linears.values())
        logger.info("packed weights: %.2f GB from %s", size / 1e9, self.path)

    def _write(self, linears: dict[str, StoredLinear]) -> None:
        size = sum(linear.nbytes for linear in linears.values())
        folder = self.path.parent
        unfinished = folder / f".{self.path.stem}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not _make_room(folder, size, self._limit):
                logger.info("packed weights: not kept; %s has no room for %d bytes", folder, size)
                return
            with unfinished.open("wb", buffering=0) as file:
                _write_file(file.fileno(), linears)
            unfinished.replace(self.path)
        except Exception as error:
            logger.warning("The packed weights cannot be kept in %s: %s", folder, error)
            _remove(unfinished)
            return
        logger.info(
            "packed weights: kept %.2f GB in %s, of at most %.1f GB there; QUIRE_CACHE_DIR moves "
            "it, --pack-cache-bytes 0 turns it off", size / 1e9, folder, self._limit / 1e9
        )  # fmt: skip


def _read_file(
    fd: int, dtype: str, threads: int, streamed: Collection[str]
) -> dict[str, StoredLinear]:
    from quire.ops.packed_file import read_linears

    prefix = os.pread(fd, _PREFIX, 0)
    length = int.from_bytes(prefix[64:], "little")
    size = os.fstat(fd).st_size
    text = os.pread(fd, min(length, size), _PREFIX)
    if hashlib.sha256(text).hexdigest().encode() != prefix[:64]:
        raise ValueError("its header is damaged")
    header: dict[str, Any] = json.loads(text)
    if header["size"] != size:
        raise ValueError(f"it has {size} bytes of {header['size']}")
    names: list[str] = header["names"]
    shapes = [tuple(shape) for shape in header["shapes"]]
    in_file = [name in streamed for name in names]
    linears, checksum = read_linears(fd, header["start"], shapes, dtype, threads, in_file)
    if checksum != header["checksum"]:
        raise ValueError("its data is damaged")
    return dict(zip(names, linears, strict=True))


def _write_file(fd: int, linears: dict[str, StoredLinear]) -> None:
    from quire.ops.packed_file import write_linears

    shapes = [linear.shape for linear in linears.values()]
    header: dict[str, Any] = {"names": list(linears), "shapes": shapes}
    room = len(json.dumps(header)) + 256  # for the numbers that are not known yet
    header["start"] = -(-(_PREFIX + room) // _ALIGN) * _ALIGN
    header["checksum"] = write_linears(fd, header["start"], list(linears.values()))
    header["size"] = os.fstat(fd).st_size
    text = json.dumps(header).encode()
    prefix = hashlib.sha256(text).hexdigest().encode() + len(text).to_bytes(8, "little")
    os.pwrite(fd, prefix + text, 0)


def _make_room(folder: Path, size: int, limit: int) -> bool:
    """Remove the least recently used files until `size` more bytes keep the limit."""
    import shutil

    for left in folder.glob(".*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_SECONDS:
                left.unlink()
    files = []
    for path in folder.glob("*" + SUFFIX):
        with contextlib.suppress(OSError):  # another engine has removed it
            stat = path.stat()
            files.append((stat.st_mtime, stat.st_size, path))
    held = sum(file_size for _, file_size, _ in files)
    for _, file_size, path in sorted(files):
        if held + size <= limit:
            break
        _remove(path)
        held -= file_size
    return held + size <= limit and size <= shutil.disk_usage(folder).free // FREE_SHARE


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
