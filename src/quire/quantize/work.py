"""The work folder: finished layers, so that a killed run can continue.

    OUTPUT.work/
      job.json           the job; another job is refused
      samples.json       calibration token ids
      layer-00000.safetensors …  head.safetensors
      result/            the checkpoint, renamed to OUTPUT once it is complete

A file gets its final name only when it is complete, and later layers are computed from the files of
earlier ones. So an interruption does not change the result.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from quire.checkpoint.json_file import read_json
from quire.checkpoint.safetensors import SafetensorsFile
from quire.checkpoint.safetensors_writer import StoredTensor, write_file
from quire.core.dtypes import FLOAT32, HostArray, converted
from quire.core.errors import ConfigError
from quire.core.quantized import QuantizedWeight
from quire.quantize.compressed import stored
from quire.quantize.gguf_target import Blocks
from quire.quantize.targets import Quantized

Content = dict[str, HostArray | Quantized]
"""Parameter → its values, or its quantized form."""


class WorkFolder:
    """The folder of one job; closed when the job ends or fails.

    Raises:
        ConfigError: it belongs to another job, or another process uses it.
    """

    def __init__(self, output: Path, job: Mapping[str, Any]) -> None:
        self.path = output.with_name(output.name + ".work")
        self.result = self.path / "result"
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.path)
        self._check(dict(job))

    def has(self, unit: str) -> bool:
        return self._file(unit).exists()

    def save(self, unit: str, content: Content, unseen: Sequence[int] = ()) -> None:
        """Save a finished unit, and the experts that no calibration row reached."""
        tensors: list[StoredTensor] = []
        forms: dict[str, Any] = {}
        for name, value in content.items():
            if isinstance(value, np.ndarray):
                tensors.append(stored(name, value))
            elif isinstance(value, Blocks):
                forms[name] = {"type": value.type, "columns": value.columns}
                tensors.append(stored(f"{name}#blocks", value.raw))
            else:
                forms[name] = {"bits": value.bits, "group": value.group}
                tensors.append(stored(f"{name}#codes", value.codes))
                tensors.append(stored(f"{name}#scale", value.scale))
                if value.zero is not None:
                    tensors.append(stored(f"{name}#zero", value.zero))
        notes = {"forms": json.dumps(forms), "unseen": json.dumps(list(unseen))}
        write_file(self._file(unit), tensors, notes)

    def unseen(self, unit: str) -> list[int]:
        """Return the experts of a saved unit that no calibration row reached."""
        found: list[int] = json.loads(SafetensorsFile(self._file(unit)).metadata["unseen"])
        return found

    def load(self, unit: str) -> Content:
        """Return the saved content; arrays are views of the mapped file."""
        file = SafetensorsFile(self._file(unit))
        forms: dict[str, dict[str, Any]] = json.loads(file.metadata["forms"])
        found: Content = {name: file.read(name) for name in file.tensors if "#" not in name}
        for name, form in forms.items():
            if "type" in form:
                found[name] = Blocks(form["type"], file.read(f"{name}#blocks"), form["columns"])
                continue
            zero = f"{name}#zero"
            found[name] = QuantizedWeight(
                file.read(f"{name}#codes"),
                form["bits"],
                file.read(f"{name}#scale"),
                form["group"],
                file.read(zero) if zero in file.tensors else None,
            )
        return found

    def samples(self) -> list[list[int]] | None:
        """Return the calibration samples, or None if none were chosen yet."""
        path = self.path / "samples.json"
        return read_json(path)["samples"] if path.exists() else None

    def keep_samples(self, samples: list[list[int]]) -> None:
        _write_json(self.path / "samples.json", {"samples": samples})

    def clear_result(self) -> Path:
        """Return an empty folder for the checkpoint."""
        shutil.rmtree(self.result, ignore_errors=True)
        self.result.mkdir()
        return self.result

    def close(self, *, done: bool) -> None:
        """Unlock the folder; remove it if the job is `done`."""
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


def dense(value: HostArray | Quantized) -> HostArray:
    """Return the values as float32."""
    return converted(value, FLOAT32) if isinstance(value, np.ndarray) else value.dequantize()


def _lock(folder: Path) -> IO[str]:
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigError(f"Another process is using {folder.name}.", param="--output") from None
    return lock


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content))
    partial.replace(path)
