"""A structure's keys, limits and errors, for the processes that write no grammars."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from quire.core.errors import InvalidRequestError
from quire.core.structured_outputs import StructuredOutputsParams

CHECKED_KEPT = 1024
"""Grammars that were found to be good and need not be checked again."""
MAX_WRITTEN_BYTES = 4 * 2**20
"""Of the grammars of one structure."""
REFUSED = "refused: "
"""Prefix of an invalid type that carries the reason through llguidance."""


def grammar_key(params: StructuredOutputsParams) -> bytes:
    """Return a digest of 16 bytes, equal for equal grammars."""
    data = msgspec.msgpack.encode(msgspec.structs.replace(params, field=None))
    return blake2b(data, digest_size=16).digest()


def structure_key(params: StructuredOutputsParams) -> bytes:
    """Return `grammar_key` of the structure alone, without its reasoning."""
    return grammar_key(msgspec.structs.replace(params, reasoning=None))


def refused(reason: str, params: StructuredOutputsParams) -> InvalidRequestError:
    """Return the error for an unsupported structure, with the reason."""
    what = params.field or f"structured_outputs.{params.kind}"
    if reason.startswith("panic: assertion failed: grammar.symbols.len()"):
        reason = "the grammar is too large"
    if "NoExtensionBias" in reason:
        reason = "no token of the model's vocabulary can go on with the text"
    if "coerce_one_of" in reason:
        reason = "oneOf: its branches overlap, and no value is known to be in one alone"
    if REFUSED in reason:
        reason = reason.partition(REFUSED)[2].partition("\n")[0]
    reason = reason.split("<backtrace>")[0].replace("<non-verbose/>", "").strip().rstrip(".")
    return InvalidRequestError(
        f"{what} cannot be served: {reason}.", param=params.field or "structured_outputs"
    )
