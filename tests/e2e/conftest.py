"""A server of a model that embeds, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.serving import Server, serving


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    from tests.golden.tiny_encoders import make_encoder  # imports Transformers

    folder = tmp_path_factory.mktemp("encoder")
    make_encoder(folder, "bert")
    with serving(folder) as running:
        yield running
