"""A pytest plugin: tests the native module of a file, in place of the installed one.

python -m pytest -p tools.native_module --native FILE …
"""

from __future__ import annotations

import importlib.util
import sys

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native", metavar="FILE", required=True, help="the native module to test")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before any file of the tests, which import it."""
    path = early_config.known_args_namespace.native
    spec = importlib.util.spec_from_file_location("quire._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["quire._native"] = module
