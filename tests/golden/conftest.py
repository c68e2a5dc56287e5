"""The fixtures of these tests. Without torch there are none, and the modules here skip."""

from __future__ import annotations

import contextlib

import pytest

with contextlib.suppress(ModuleNotFoundError, pytest.skip.Exception):
    from tests.golden.fixtures import (  # noqa: F401
        _one_thread,
        _quiet_transformers,
        find,
        golden,
        made,
        tiny_folder,
    )
