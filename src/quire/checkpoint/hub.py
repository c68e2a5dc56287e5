"""Download models from the Hugging Face hub: select files, check the disk, fetch."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, cast

from quire.checkpoint.weight_files import only_pickled, split_names
from quire.core.errors import CheckpointError, ModelNotFoundError, QuireError
from quire.system.env import hf_offline

_SMALL_FILES = (".json", ".jinja", "tokenizer.model", "tiktoken.model", "merges.txt", "vocab.txt")
_INNER = re.compile(r"\d+_[A-Za-z]+/config\.json|(?:additional_)?chat_templates/[^/]+\.jinja")
"""Modules of sentence-transformers, and chat templates."""
_INNER_WEIGHTS = re.compile(r"\d+_Dense/model\.safetensors")
_SPARE_BYTES = 256 << 20
"""Left free on the disk beyond the download itself."""


class DiskFullError(QuireError, OSError):
    """The download does not fit on the disk."""

    code = "disk_full"

    def __str__(self) -> str:  # OSError formats errno pairs
        return str(self.args[0])


def download(
    model: str,
    revision: str | None = None,
    download_dir: str | None = None,
    *,
    weights: bool = True,
) -> Path:
    """Return the local folder (or .gguf file) of hub model `model`, after downloading missing
    files.

    `model` is "name", "owner/name" or "owner/name/file.gguf". Only JSON, tokenizer and chat
    template files are fetched, and with `weights` the .safetensors (or the one .gguf): never a
    pickle. Interrupted downloads resume. Without a network, or with HF_HUB_OFFLINE set, the
    local cache is the only source.

    Raises:
        ModelNotFoundError: no such model, no access, or no network and nothing cached.
        CheckpointError: the model's weights are in no format that Quire opens.
        DiskFullError: it does not fit on the disk.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    # The HTTP client's own base class, whichever client this version of the hub uses.
    http_error = cast("type[Exception]", HfHubHTTPError.__bases__[0])

    repository, gguf = _split(model)
    where: dict[str, Any] = {"revision": revision, "cache_dir": download_dir}
    try:
        try:
            if hf_offline():
                raise ConnectionError("HF_HUB_OFFLINE is set")
            info = HfApi().model_info(repository, revision=revision, files_metadata=True)
        except (ConnectionError, TimeoutError, http_error) as error:
            if _answered(error):
                raise
            folder = Path(snapshot_download(repository, local_files_only=True, **where))
            names = [path.name for path in folder.iterdir()]
            return _entry(folder, select_files(model, names, gguf, weights=weights))
        sizes = {item.rfilename: item.size or 0 for item in info.siblings or []}
        wanted = select_files(model, list(sizes), gguf, weights=weights)
        _check_disk(model, repository, {name: sizes[name] for name in wanted}, info.sha, where)
        folder = Path(
            snapshot_download(repository, allow_patterns=wanted, tqdm_class=_progress(), **where)
        )
        return _entry(folder, wanted)
    except LocalEntryNotFoundError as error:
        raise _unreachable(model) from error
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"{model!r} is neither a path nor a hub id.", fix="Check the path, or write owner/name."
        ) from error
    except (ConnectionError, TimeoutError, http_error) as error:
        raise _refused(model, revision, error) from error


def select_files(model: str, names: list[str], gguf: str | None, *, weights: bool) -> list[str]:
    """Return the needed files of the repository.

    Raises:
        ModelNotFoundError: it lacks the .gguf file that the user named.
        CheckpointError: its weights are pickled, or are several .gguf files to choose from.
    """
    if gguf is not None:
        if gguf not in names:
            raise ModelNotFoundError(
                f"{model}: the repository has no such file.",
                fix=f"It has {_listed(names, '.gguf') or 'no .gguf file'}.",
            )
        wanted = split_names(gguf)
        if missing := [name for name in wanted if name not in names]:
            raise CheckpointError(
                f"{model}: the repository lacks {', '.join(missing[:5])}.",
                fix="Name the first of a model's files, which ends in -00001-of-….gguf.",
            )
        return wanted
    top = [name for name in names if "/" not in name]
    small = [name for name in top if name.endswith(_SMALL_FILES)]
    small += [name for name in names if _INNER.fullmatch(name)]
    tensors = [name for name in top if name.endswith(".safetensors")]
    # Some repositories hold the weights twice; the numbered or plain "model" files are ours.
    tensors = [name for name in tensors if name.startswith("model")] or tensors
    ggufs = [name for name in top if name.endswith(".gguf")]
    if "config.json" in top and (tensors or not ggufs):
        if weights and not tensors:
            raise _no_tensors(model, top)
        inner = [name for name in names if _INNER_WEIGHTS.fullmatch(name)]
        return small + ([*tensors, *inner] if weights else [])
    if ggufs and sorted(ggufs) == split_names(min(ggufs)):
        return sorted(ggufs)
    if ggufs:
        raise CheckpointError(
            f"{model} holds {len(ggufs)} .gguf files: {_listed(top, '.gguf')}.",
            fix=f"Name one: {model}/{ggufs[0]}.",
        )
    raise _no_tensors(model, top)


def _split(model: str) -> tuple[str, str | None]:
    """Return the repository and, for "owner/name/file.gguf", the file."""
    parts = model.split("/")
    return ("/".join(parts[:2]), parts[2]) if len(parts) == 3 else (model, None)


def _entry(folder: Path, names: list[str]) -> Path:
    """Return what to open: the only or first .gguf file, else the folder."""
    return folder / names[0] if names[0].endswith(".gguf") else folder


def _check_disk(
    model: str, repository: str, sizes: dict[str, int], commit: str | None, where: dict[str, Any]
) -> None:
    from huggingface_hub import constants, try_to_load_from_cache

    cache = where["cache_dir"]
    missing = sum(
        size
        for name, size in sizes.items()
        if not isinstance(try_to_load_from_cache(repository, name, cache, commit), str)
    )
    folder = Path(cache or constants.HF_HUB_CACHE).expanduser().absolute()
    while not folder.exists():
        folder = folder.parent
    import shutil

    free = shutil.disk_usage(folder).free
    if missing and missing + _SPARE_BYTES > free:
        raise DiskFullError(
            f"{model} needs {missing / 1e9:.2f} GB on the disk, and {free / 1e9:.2f} GB are free.",
            fix="Free some space, or choose another disk with --download-dir.",
            param="--download-dir",
        )


def _progress() -> Any:
    """Return a progress bar on stderr, silent if stderr is no terminal."""
    from huggingface_hub import utils

    class Progress(utils.tqdm):  # type: ignore[name-defined,misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs["disable"] = kwargs.get("disable") or not sys.stderr.isatty()
            super().__init__(*args, **kwargs)

    return Progress


def _answered(error: Exception) -> bool:
    """Return whether the hub itself refused, as opposed to being unreachable."""
    status = getattr(getattr(error, "response", None), "status_code", 0)
    return 400 <= status < 500


def _unreachable(model: str) -> ModelNotFoundError:
    if hf_offline():
        return ModelNotFoundError(
            f"{model!r} is no local path and is not in the cache, and HF_HUB_OFFLINE is set.",
            fix="Check the path, or unset HF_HUB_OFFLINE to download it.",
        )
    return ModelNotFoundError(
        f"{model!r} is no local path and is not in the cache, and the hub cannot be reached.",
        fix="Check the path or the network connection.",
    )


def _refused(model: str, revision: str | None, error: Exception) -> ModelNotFoundError:
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return ModelNotFoundError(
            f"{model} asks for a licence to be accepted.",
            fix="Accept it on the hub's page of the model and log in with `hf auth login`.",
        )
    if isinstance(error, RevisionNotFoundError):
        return ModelNotFoundError(
            f"{model} has no revision {revision!r}.", fix="Check --revision.", param="--revision"
        )
    if _answered(error):
        return ModelNotFoundError(
            f"{model!r} is no local path, and the hub has no such model, or it is private.",
            fix="Check the name; for a private model log in with `hf auth login`.",
        )
    return _unreachable(model)


def _no_tensors(model: str, names: list[str]) -> CheckpointError:
    pickled = only_pickled(model, names, "Use a copy of the model in safetensors or GGUF.")
    what = f"{model} holds no .safetensors or .gguf file."
    return pickled or CheckpointError(what, fix="Use another repository.")


def _listed(names: list[str], suffix: str) -> str:
    found = [name for name in names if name.endswith(suffix)]
    return ", ".join(found[:8]) + (" …" if len(found) > 8 else "")
