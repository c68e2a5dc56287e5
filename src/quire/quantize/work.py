"""The work folder: finished layers, so that a run that was killed goes on where it was.

    OUTPUT.work/
      job.json           what the work is for; another command is refused
      samples.json       calibration token ids
      layer-00000.safetensors …  head.safetensors
      result/            the checkpoint, renamed to OUTPUT once it is whole

A file has its name only once it is whole, and what is computed from a layer is computed from what
its file holds; so it makes no difference to the result when a run was killed.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from quire.checkpoint.json_file import read_json
from quire.checkpoint.safetensors import SafetensorsFile
from quire.checkpoint.safetensors_writer import StoredTensor, write_file
from quire.core.errors import ConfigError
from quire.ops import torch_arrays
from quire.ops.quantized import QuantizedWeight
from quire.quantize.compressed import stored
from quire.quantize.gguf_target import Blocks
from quire.quantize.targets import Quantized

Content = dict[str, Tensor | Quantized]
"""Parameter → what it has become."""

_CODES = {"int8": torch.int8, "uint8": torch.uint8, "float8_e4m3fn": torch.float8_e4m3fn}


class WorkFolder:
    """The folder of one job; closed when the job ends, one way or the other.

    Raises:
        ConfigError: it holds other work, or another process is at it.
    """

    def __init__(self, output: Path, job: Mapping[str, Any]) -> None:
        self.path = output.with_name(output.name + ".work")
        self.result = self.path / "result"
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.path)
        self._check(dict(job))

    def has(self, unit: str) -> bool:
        return self._file(unit).exists()

    def save(self, unit: str, content: Content) -> None:
        tensors: list[StoredTensor] = []
        forms: dict[str, Any] = {}
        for name, value in content.items():
            if isinstance(value, Tensor):
                tensors.append(stored(name, value))
            elif isinstance(value, Blocks):
                forms[name] = {"type": value.type, "columns": value.columns}
                tensors.append(_bytes(f"{name}#blocks", value.raw))
            else:
                codes = str(value.codes.dtype).removeprefix("torch.")
                forms[name] = {"codes": codes, "bits": value.bits, "group": value.group}
                tensors.append(_bytes(f"{name}#codes", value.codes.view(torch.uint8)))
                tensors.append(stored(f"{name}#scale", value.scale))
                if value.zero is not None:
                    tensors.append(stored(f"{name}#zero", value.zero))
        write_file(self._file(unit), tensors, {"forms": json.dumps(forms)})

    def load(self, unit: str) -> Content:
        """What was saved; tensors lie in the mapped file."""
        file = SafetensorsFile(self._file(unit))
        forms: dict[str, dict[str, Any]] = json.loads(file.metadata["forms"])

        def tensor(name: str) -> Tensor:
            return torch_arrays.tensor(file.read(name))

        found: Content = {name: tensor(name) for name in file.tensors if "#" not in name}
        for name, form in forms.items():
            if "type" in form:
                found[name] = Blocks(form["type"], tensor(f"{name}#blocks"), form["columns"])
                continue
            zero = f"{name}#zero"
            found[name] = QuantizedWeight(
                tensor(f"{name}#codes").view(_CODES[form["codes"]]),
                form["bits"],
                tensor(f"{name}#scale"),
                form["group"],
                tensor(zero) if zero in file.tensors else None,
            )
        return found

    def samples(self) -> list[list[int]] | None:
        """The calibration samples that were chosen, if they were."""
        path = self.path / "samples.json"
        return read_json(path)["samples"] if path.exists() else None

    def keep_samples(self, samples: list[list[int]]) -> None:
        _write_json(self.path / "samples.json", {"samples": samples})

    def clear_result(self) -> Path:
        """An empty folder for the checkpoint."""
        shutil.rmtree(self.result, ignore_errors=True)
        self.result.mkdir()
        return self.result

    def close(self, *, done: bool) -> None:
        """Let go of the folder; remove it where the job is `done`."""
        if done:
            shutil.rmtree(self.path)
        self._lock.close()

    def _file(self, unit: str) -> Path:
        return self.path / f"{unit}.safetensors"

    def _check(self, job: dict[str, Any]) -> None:
        path = self.path / "job.json"
        if not path.exists():
            _write_json(path, job)
            return
        before = read_json(path)
        wanted = json.loads(json.dumps(job))
        for name in sorted({*before, *wanted}):
            if before.get(name) != wanted.get(name):
                self._lock.close()
                raise ConfigError(
                    f"{self.path.name} holds work of another {name.replace('_', ' ')}: "
                    f"{before.get(name)}, not {wanted.get(name)}.",
                    fix="Remove the folder, give the same flags as then, or name another --output.",
                    param="--output",
                )


def dense(value: Tensor | Quantized) -> Tensor:
    """What the value stands for: float32."""
    return value.float() if isinstance(value, Tensor) else value.dequantize()


def _bytes(name: str, raw: Tensor) -> StoredTensor:
    return StoredTensor(name, "U8", tuple(raw.shape), raw.contiguous().numpy)


def _lock(folder: Path) -> IO[str]:
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigError(
            f"Another process is at work in {folder.name}.", param="--output"
        ) from None
    return lock


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content))
    partial.replace(path)
