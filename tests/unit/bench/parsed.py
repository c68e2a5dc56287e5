"""The flags of `quire bench`: their parser takes 0.2 s to make and serves all tests."""

from __future__ import annotations

import argparse
from functools import cache

from quire.bench.main import add_arguments


@cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser


def bench_args(*argv: str) -> argparse.Namespace:
    """Return what `quire bench` reads from these words."""
    return _parser().parse_args(argv)
