"""The number of BLAS threads, as BLAS itself reports it."""

from __future__ import annotations

import pytest

from quire.system.blas import blas_threads, current_blas_threads

if not current_blas_threads():
    pytest.skip("numpy is linked to a BLAS other than OpenBLAS", allow_module_level=True)


def test_threads_are_changed_and_restored() -> None:
    before = current_blas_threads()
    with blas_threads(before + 2):
        assert current_blas_threads() == before + 2
        with blas_threads(1):
            assert current_blas_threads() == 1
        assert current_blas_threads() == before + 2
    assert current_blas_threads() == before
