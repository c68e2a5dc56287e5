"""Measure the quality loss: the engine runs both models on the same text."""

from __future__ import annotations

import sys
from pathlib import Path

from quire.bench.quality import STORIES, compared, quiet, read_documents
from quire.bench.results.report import print_grid, write_json
from quire.resolve.arguments import EngineArgs


def report(
    original: str, quantized: Path, text: Path | None, target: Path, *, num_threads: int
) -> None:
    """Print the table of both models, and write its rows to `target`.

    Raises:
        QuireError: the text cannot be read, or a model cannot be run.
    """
    documents = read_documents(text or STORIES)
    with quiet():
        rows = compared(
            [EngineArgs(model=m, num_threads=num_threads) for m in (original, str(quantized))],
            documents,
            lambda: None,
        )
    print_grid("quantize", rows, sys.stdout)
    write_json(target, rows)
