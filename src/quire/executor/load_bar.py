"""A progress bar while a model loads, on a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from quire.models.parameters import Progress

_FORMAT = "{desc} {percentage:3.0f}% |{bar}| {elapsed}<{remaining}"


@contextmanager
def load_bar(*, shown: bool = True) -> Iterator[Progress | None]:
    """Show a progress bar during the block, and yield the function that reports bytes.

    Yield None if standard error is not a terminal, or if not `shown`.
    """
    if not (shown and sys.stderr.isatty()):
        yield None
        return
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        monitor_interval = 0  # no monitor thread

    lines_above = logging_redirect_tqdm([logging.getLogger("quire")])
    bar = Bar(desc="Loading the model", total=1, leave=False, bar_format=_FORMAT, file=sys.stderr)

    def progress(done: int, total: int) -> None:
        if bar.total != total:
            bar.total = total
            bar.set_description_str(f"Loading {total / 1e9:.2f} GB", refresh=False)
        bar.update(done - bar.n)

    with lines_above, bar:
        yield progress
