"""The oracle's answers, once for all files; quiet, for no test is about its progress reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from tests.golden.tiny_models import TINY_MODELS, make_tiny
from tests.golden.transformers_oracle import Golden, find_golden


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, PreTrainedModel]]:
    """Return the folder of a tiny model, made once, and the model; for reading only."""

    @cache
    def made(name: str) -> tuple[Path, PreTrainedModel]:
        folder = tmp_path_factory.mktemp(name)
        return folder, make_tiny(name, seed=0, folder=folder)

    return made


@pytest.fixture
def tiny_folder(
    request: pytest.FixtureRequest, made: Callable[[str], tuple[Path, PreTrainedModel]]
) -> Path:
    """The folder of the tiny model that the test's parameter `name` names."""
    return made(request.getfixturevalue("name"))[0]


@pytest.fixture(scope="session")
def find(
    made: Callable[[str], tuple[Path, PreTrainedModel]],
) -> Callable[[str], tuple[str, Path, Golden]]:
    """Return a model's name, its folder and what Transformers answers."""

    @cache
    def found(name: str) -> tuple[str, Path, Golden]:
        folder, model = made(name)
        return name, folder, find_golden(model)

    return found


@pytest.fixture(scope="module", params=TINY_MODELS)
def golden(
    request: pytest.FixtureRequest, find: Callable[[str], tuple[str, Path, Golden]]
) -> tuple[str, Path, Golden]:
    return find(request.param)


@pytest.fixture(autouse=True, scope="session")
def _quiet_transformers() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny matrices are slower on many threads, the more so beside other tests."""
    torch.set_num_threads(1)
