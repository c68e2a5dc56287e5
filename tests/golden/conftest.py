"""Quiet the oracle: Transformers reports progress and opinions that no test is about."""

from __future__ import annotations

import pytest
import torch
from transformers.utils import logging


@pytest.fixture(autouse=True, scope="session")
def _quiet_transformers() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny matrices are slower on many threads, the more so beside other tests."""
    torch.set_num_threads(1)
