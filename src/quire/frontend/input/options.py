"""Checks a request's options against the engine."""

from __future__ import annotations

from msgspec.structs import replace

from quire.core.errors import InvalidRequestError
from quire.core.kv_sharing import TransferConfig
from quire.core.options import RequestOptions


def without_surplus(options: RequestOptions, most: int) -> RequestOptions:
    """Return the options without promised blocks beyond the prompt's, which nobody can use."""
    transfer = options.kv_transfer
    if transfer is None or len(transfer.promised) <= most:
        return options
    return replace(options, kv_transfer=replace(transfer, promised=transfer.promised[:most]))


def check_options(options: RequestOptions, transfer: TransferConfig | None = None) -> None:
    """Raise `InvalidRequestError` for options that do not fit into a message, or the engine."""
    wanted = options.kv_transfer
    if wanted is not None and wanted.hands_over and (transfer is None or not transfer.produces):
        raise InvalidRequestError(
            "do_remote_decode is true, but this engine is no producer.",
            fix="Start it with --kv-transfer-config and the kv_role kv_producer or kv_both.",
            param="kv_transfer_params",
        )
    priority = options.priority
    if type(priority) is not int or not -(2**63) <= priority < 2**63:
        raise InvalidRequestError(
            f"priority is {priority!r}; it must be a whole number in [-2**63, 2**63).",
            param="priority",
        )
