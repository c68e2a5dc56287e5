"""vLLM's older command: `python -m quire.entrypoints.openai.api_server` is `quire serve`."""

from __future__ import annotations

import sys

from quire.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
