"""One tiny model, one that embeds, and a server of each for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.serving import Server, serving
from tests.e2e.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def server(tiny_model: Path) -> Iterator[Server]:
    with serving(tiny_model, "--num-gpu-blocks-override", "256") as running:
        yield running


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from tests.golden.tiny_encoders import make_encoder  # imports Transformers

    folder = tmp_path_factory.mktemp("encoder")
    make_encoder(folder, "bert")
    with serving(folder) as running:
        yield running
