"""Fixtures of all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.e2e.serving import Server, serving

if TYPE_CHECKING:
    import openai


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of the server that all tests share."""
    with server.openai_client() as client:
        yield client


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model that embeds."""
    from tests.golden.tiny_encoders import make_encoder  # imports Transformers

    folder = tmp_path_factory.mktemp("encoder")
    make_encoder(folder, "bert")
    with serving(folder) as running:
        yield running
