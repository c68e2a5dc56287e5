"""Weights that leave the memory (`--cpu-offload-gb`): which ones, and how they get into files;
torch-free.

The linear weights of the last layers, as many as the flag allows, go: from a GPU's memory to the
host's (`models.weights.host_offload`), from the host's to a mapped file, which is that of the pack
cache where it has them, or one made while they are packed. A thread reads them ahead of the
products (csrc/cpu/weight_stream.h). Where memory is short it gives back the pages of those that
were used, so that no more than two layers' worth of them is in memory.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.models.layout import parameters
from quire.models.memory import loaded_bytes, parameter_bytes
from quire.models.weights.packed_bytes import round_up
from quire.system import env

if TYPE_CHECKING:
    from quire import _native
    from quire.ops.packed_file import LinearFile

logger = logging.getLogger(__name__)

HOST_ALIGNMENT = 256
"""Bytes to which a weight's place in pinned memory is rounded up: as GPUs align tensors."""
LAYERS_AHEAD = 2
"""The layer in use, and the one that is read meanwhile."""


def layer_weights(config: EngineConfig) -> dict[str, int]:
    """Return the layers' linear weights and their bytes, in order of computation; for a GPU, their
    bytes in host memory.
    """
    unit = 1 if config.device == "cpu" else HOST_ALIGNMENT
    return {
        parameter.name: round_up(parameter_bytes(config, parameter), unit)
        for parameter in parameters(config.model)
        if parameter.in_layer
    }


def last_weights(weights: dict[str, int], limit: int) -> dict[str, int]:
    """Return the last weights that take at most `limit` bytes together, in the same order."""
    chosen: list[tuple[str, int]] = []
    for name, size in reversed(weights.items()):
        if size > limit:
            break
        chosen.append((name, size))
        limit -= size
    return dict(reversed(chosen))


def held_weight_bytes(config: EngineConfig) -> int:
    """Return the bytes of device memory for the engine's weights, without offloaded ones."""
    every = loaded_bytes(config)
    return every - (OffloadPlan(config).saved_bytes if config.cpu_offload_bytes else 0)


def layer_of(name: str) -> str:
    """Return "layers.7" for "layers.7.attn.qkv.weight"."""
    return ".".join(name.split(".")[:2])


class OffloadPlan:
    """Which weights of an engine are offloaded.

    Attributes:
        weights: parameter → its bytes, as planned.
        layers: "layers.7" → bytes of its weights among them.
        ahead_bytes: what is to be in the device's memory of them at a time; on a GPU whole layers.
    """

    def __init__(self, config: EngineConfig) -> None:
        weights = layer_weights(config)
        self.weights = last_weights(weights, config.cpu_offload_bytes)
        self.layers: Counter[str] = Counter()
        for name, size in self.weights.items():
            self.layers[layer_of(name)] += size
        layer = sum(weights.values()) // config.model.num_hidden_layers
        self.ahead_bytes = min(LAYERS_AHEAD * layer, self.planned_bytes)
        if config.device != "cpu" and self.layers:
            held = min(LAYERS_AHEAD, len(self.layers))
            self.ahead_bytes = held * max(self.layers.values())

    @property
    def planned_bytes(self) -> int:
        return sum(self.weights.values())

    @property
    def saved_bytes(self) -> int:
        """Return the bytes of memory that the weights do not take."""
        return self.planned_bytes - self.ahead_bytes


class WeightOffload(OffloadPlan):
    """The weights of an engine that stay in files."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._moved: dict[str, int] = {}
        self._limit = config.cpu_offload_bytes
        self._threads = config.num_threads
        self._file: LinearFile | None = None
        self._stream: _native.WeightStream | None = None

    @property
    def moved_bytes(self) -> int:
        """Return the bytes in files; never more than `cpu_offload_bytes`."""
        return sum(self._moved.values())

    def place(self, name: str, packed: Any) -> Any:
        """Move a weight that was just packed to the file, if it is one of these, and give it back.

        Raises:
            ConfigError: there is no room on the disk, or only native weights can be moved.
        """
        if name not in self.weights:
            return packed
        if not hasattr(packed, "stored"):
            raise ConfigError(
                "--cpu-offload-gb needs the native kernels, which alone read weights from files.",
                fix="Leave it out, or install Quire with its native module.",
                param="cpu_offload_gb",
            )
        linear = packed.stored
        self._moved.pop(name, None)  # of a file that turned out not to fit
        if self.moved_bytes + linear.nbytes > self._limit:
            return packed  # padding that was not foreseen
        if not linear.streamed_bytes:
            self._move(linear)
        self._moved[name] = linear.nbytes
        return packed

    def _move(self, linear: Any) -> None:
        folder = env.cache_dir() / "offload"
        try:
            if self._file is None:
                self._file = self._new_file()
            self._file.move(linear)
        except OSError as error:
            raise ConfigError(
                f"{self.planned_bytes / 2**30:.2f} GiB of weights cannot be kept in {folder}: "
                f"{error.strerror or error}.",
                fix="Make room there, set QUIRE_CACHE_DIR to another disk, or lower "
                "--cpu-offload-gb.",
                param="cpu_offload_gb",
            ) from error

    def _new_file(self) -> LinearFile:
        from quire.ops.packed_file import LinearFile

        folder = env.cache_dir() / "offload"
        folder.mkdir(parents=True, exist_ok=True)
        import shutil

        if (free := shutil.disk_usage(folder).free) < self.planned_bytes:
            raise OSError(f"only {free / 2**30:.2f} GiB are free")
        return LinearFile(folder, self._threads)

    def start(self, linear_weights: Mapping[str, Any], free_bytes: int) -> None:
        """Read ahead from now on.

        Args:
            linear_weights: parameter → its packed weight, in the order of the computation.
            free_bytes: memory that nobody else will take; where it holds all these weights, they
                are not given back after each use.
        """
        from quire.ops.packed_file import stream_linears

        if self._file is not None:
            self._file.close()
        stored = [linear_weights[name].stored for name in self.weights]
        mapped = [linear for linear in stored if linear.streamed_bytes]
        give_back = free_bytes < self.moved_bytes
        self._stream = stream_linears(mapped, self.ahead_bytes, give_back=give_back)
        logger.info(
            "weights: %.2f GiB of the last layers stay in a mapped file, %.2f GiB of them at a "
            "time in memory%s",
            self.moved_bytes / 2**30, self.ahead_bytes / 2**30,
            "" if give_back else ", and all of them while there is room",
        )  # fmt: skip

    @property
    def given_back_bytes(self) -> int:
        """Return the bytes of pages given back to the system so far."""
        return self._stream.given_back_bytes if self._stream else 0
