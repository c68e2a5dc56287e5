"""hub.py, against a stand-in for the hub's client."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from quire.checkpoint import hub
from quire.core.errors import CheckpointError, ModelNotFoundError

REPOSITORY = {
    "README.md": 10,
    "config.json": 20,
    "model-00001-of-00002.safetensors": 3000,
    "model-00002-of-00002.safetensors": 2000,
    "model.safetensors.index.json": 30,
    "consolidated.safetensors": 5000,
    "onnx/model.onnx": 9000,
    "original/params.json": 9,
    "pytorch_model.bin": 5000,
    "tokenizer.json": 40,
    "chat_template.jinja": 5,
    "additional_chat_templates/tool_use.jinja": 5,
}


class FakeHub:
    """Answers as the client does; records what was asked for."""

    def __init__(self, files: dict[str, int], folder: Path) -> None:
        self.files = files
        self.folder = folder
        self.patterns: list[str] | None = None
        self.error: Exception | None = None
        self.cached = False

    def model_info(self, *_: Any, **__: Any) -> Any:
        if self.error:
            raise self.error
        siblings = [SimpleNamespace(rfilename=n, size=s) for n, s in self.files.items()]
        return SimpleNamespace(siblings=siblings, sha="0" * 40)

    def snapshot_download(self, _: str, **options: Any) -> str:
        if options.get("local_files_only") and not self.cached:
            raise LocalEntryNotFoundError("nothing here")
        self.patterns = options.get("allow_patterns")
        return str(self.folder)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(REPOSITORY, tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    return fake


def test_fetches_only_what_is_needed(fake: FakeHub, tmp_path: Path) -> None:
    assert hub.download("owner/name", None, str(tmp_path)) == tmp_path
    assert fake.patterns == [
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]


def test_dummy_fetches_no_weights(fake: FakeHub, tmp_path: Path) -> None:
    hub.download("owner/name", None, str(tmp_path), weights=False)
    assert not any(name.endswith(".safetensors") for name in fake.patterns)


def test_one_gguf_of_several(fake: FakeHub, tmp_path: Path) -> None:
    fake.files = {"a.gguf": 10, "b.gguf": 20}
    assert hub.download("owner/name/b.gguf", None, str(tmp_path)) == tmp_path / "b.gguf"
    assert fake.patterns == ["b.gguf"]
    with pytest.raises(CheckpointError, match=r"Name one: owner/name/a.gguf"):
        hub.download("owner/name", None, str(tmp_path))
    with pytest.raises(ModelNotFoundError, match=r"It has a.gguf, b.gguf"):
        hub.download("owner/name/c.gguf", None, str(tmp_path))
    fake.files = {"a.gguf": 10}
    assert hub.download("owner/name", None, str(tmp_path)) == tmp_path / "a.gguf"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (("config.json", "pytorch_model.bin"), r"only a pickled checkpoint \(pytorch_model.bin\)"),
        (("config.json",), "no .safetensors or .gguf"),
        (("README.md",), "no .safetensors or .gguf"),
    ],
)
def test_repositories_without_weights(
    fake: FakeHub, tmp_path: Path, files: tuple[str, ...], said: str
) -> None:
    fake.files = dict.fromkeys(files, 1)
    with pytest.raises(CheckpointError, match=said):
        hub.download("owner/name", None, str(tmp_path))
    assert fake.patterns is None


def test_the_disk_is_checked_first(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.files = REPOSITORY | {"model-00001-of-00002.safetensors": 10**18}
    with pytest.raises(hub.DiskFullError, match=r"needs 1000000000\.\d\d GB .* --download-dir"):
        hub.download("owner/name", None, str(tmp_path / "not" / "yet" / "there"))
    assert fake.patterns is None
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: "cached")
    hub.download("owner/name", None, str(tmp_path))
    assert fake.patterns is not None


def test_offline_uses_the_cache(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fake.error = AssertionError("offline means offline")
    with pytest.raises(ModelNotFoundError, match="unset HF_HUB_OFFLINE"):
        hub.download("owner/name", None, str(tmp_path))
    fake.cached = True
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert hub.download("owner/name", None, str(tmp_path)) == tmp_path


def test_no_network(fake: FakeHub, tmp_path: Path) -> None:
    fake.error = ConnectionError("no route to host")
    with pytest.raises(ModelNotFoundError, match="the hub cannot be reached"):
        hub.download("owner/name", None, str(tmp_path))


def test_refusals_of_the_hub(fake: FakeHub, tmp_path: Path) -> None:
    from huggingface_hub import errors

    for kind, status, said in (
        (errors.RepositoryNotFoundError, 404, "no such model, or it is private"),
        (errors.GatedRepoError, 403, "licence to be accepted"),
        (errors.RevisionNotFoundError, 404, "no revision 'v9'"),
    ):
        error = kind.__new__(kind)
        error.args = ("refused",)
        error.response = SimpleNamespace(status_code=status)
        fake.error = error
        with pytest.raises(ModelNotFoundError, match=said):
            hub.download("owner/name", "v9", str(tmp_path))


def test_no_bar_unless_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with hub._progress()(total=10) as bar:
        bar.update(5)
    assert capsys.readouterr().err == ""
