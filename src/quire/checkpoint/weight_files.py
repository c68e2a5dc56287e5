"""The weight files of a model: safetensors of a folder, parts of a split GGUF file, and samples."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from quire.checkpoint.json_file import read_json
from quire.core.errors import CheckpointError, ModelNotFoundError

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_MAX_NAME_BYTES = 255
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII)

_SAMPLES, _SAMPLE_BYTES = 64, 4096


def weight_files(folder: Path) -> list[Path]:
    """Return the .safetensors files of the model in `folder`.

    An index decides; without one, `model.safetensors`, or one complete set of numbered shards,
    or the only file. Files that an index does not name (another format's copy of the same
    weights, an adapter) are left alone.
    """
    single = folder / "model.safetensors"
    if (folder / INDEX).is_file():
        return _indexed(folder, single)
    if single.exists():
        return [single]
    found = sorted(folder.glob("*.safetensors"))
    shards = [match for path in found if (match := _SHARD.fullmatch(path.name))]
    if shards:
        first = next((shard for shard in shards if shard["stem"] == "model"), shards[0])
        count = int(first["count"])
        wanted = [
            f"{first['stem']}-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)
        ]
        return _present(folder, wanted, "the names of its other shards")
    if len(found) > 1:
        raise CheckpointError(
            f"{folder.name} holds {len(found)} .safetensors files and no {INDEX}.",
            fix="Add the index, or leave only the model's own file.",
        )
    if not found:
        raise _nothing_to_load(folder)
    return found


def _indexed(folder: Path, single: Path) -> list[Path]:
    """Return the files that the index names; `single` if all of those are missing."""
    index = read_json(folder / INDEX)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{INDEX} has no weight_map.", fix="Download the file again.")
    for name in weight_map.values():
        if not isinstance(name, str) or not _is_file_name(name):
            raise CheckpointError(
                f"{INDEX} names the file {name!r}, which is not in the model's folder.",
                fix="Download the file again.",
            )
    names = sorted(set(weight_map.values()))
    if single.exists() and not any((folder / name).exists() for name in names):
        logger.warning("%s names files that are not there; %s is read.", INDEX, single.name)
        return [single]
    return _present(folder, names, INDEX)


def _is_file_name(name: str) -> bool:
    plain = Path(name).name == name and name not in ("", ".", "..") and "\0" not in name
    return plain and len(name.encode("utf-8", "backslashreplace")) <= _MAX_NAME_BYTES


def _present(folder: Path, names: list[str], by: str) -> list[Path]:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(names)} shards named by {by} are missing: "
            f"{', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}.",
            fix="Download the model again; complete files are not downloaded twice.",
        )
    return [folder / name for name in names]


def _nothing_to_load(folder: Path) -> CheckpointError | ModelNotFoundError:
    fix = "Convert it to safetensors where you trust it, or use another copy of the model."
    names = sorted(path.name for path in folder.iterdir())
    return only_pickled(folder.name, names, fix) or ModelNotFoundError(
        f"{folder.name} holds no .safetensors file.",
        fix="Download the weights, or use --load-format dummy to run without them.",
    )


def only_pickled(where: str, names: list[str], fix: str) -> CheckpointError | None:
    """Return the error of a model whose weights are pickled; None if there are none."""
    pickled = next((name for name in names if name.endswith(PICKLES)), None)
    if pickled is None:
        return None
    what = f"{where} holds only a pickled checkpoint ({pickled}), which can run code when it is"
    return CheckpointError(f"{what} opened.", fix=fix)


def split_files(path: Path) -> list[Path]:
    """Return the files of the model that starts with `path`, by name.

    Raises:
        CheckpointError: `path` is not the first one, or others are missing.
    """
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if int(match["number"]) != 1:
        raise CheckpointError(
            f"{path.name} is one of {count} files of a model.",
            fix="Name the first file (…-00001-of-….gguf), with the others in the same folder.",
        )
    names = split_names(path.name)
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of the {count} files of the model are missing: "
            f"{', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}.",
            fix="Download the others into the same folder.",
        )
    return [path.with_name(name) for name in names]


def split_names(first: str) -> list[str]:
    """Return the file names of the model that starts with `first`."""
    match = _SPLIT.fullmatch(first)
    if match is None or not int(match["count"]):
        return [first]
    count = int(match["count"])
    return [f"{match['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]


def model_files(path: Path) -> list[Path]:
    """Return the weight files of a model's folder, or of its first or only GGUF file.

    Raises:
        QuireError: some are missing.
    """
    return split_files(path) if path.is_file() else weight_files(path)


def samples(file: Path) -> Iterator[bytes]:
    """Yield evenly spaced pieces of a file; all of a small one."""
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        for sample in range(_SAMPLES):
            yield os.pread(stream.fileno(), _SAMPLE_BYTES, size * sample // _SAMPLES)
