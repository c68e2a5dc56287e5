"""vLLM's import path for what its scripts read their flags with."""

from uuid import uuid4

from quire.utils.argparse_utils import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser", "random_uuid"]


def random_uuid() -> str:
    """Return an id that no other request has."""
    return uuid4().hex
