"""vLLM's import path for its parser: `EngineArgs.add_cli_args` adds both spellings of a flag."""

from argparse import ArgumentParser as FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
