"""The front end's record of the adapters that the core has loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from quire.core.config import EngineConfig
from quire.core.errors import InvalidRequestError, ModelNotFoundError
from quire.core.lora import LoRARequest
from quire.core.messages import AddRequest

Call = Callable[..., Awaitable[Any]]
"""Runs one of the core's methods by name."""

POLL_SECONDS = 0.005
"""Delay between two polls of the core while an adapter loads."""
MAX_ID = 2**63 - 1


class AdapterClient:
    """Loads and removes adapters, and knows the loaded ones by their `lora_int_id`."""

    def __init__(self, config: EngineConfig, call: Call) -> None:
        self._call = call
        self._enabled = config.lora is not None
        self._known: dict[int, LoRARequest] = {}

    def find(self, wanted: LoRARequest) -> LoRARequest | None:
        """Return the loaded adapter with its digest; None if it is not loaded.

        Raises:
            InvalidRequestError: the request for it is invalid.
            ModelNotFoundError: it was loaded once and then removed.
        """
        self._check(wanted)
        known = self._known.get(wanted.lora_int_id)
        if known is None and wanted.digest:
            raise ModelNotFoundError(f"The adapter {wanted.lora_name!r} was unloaded.")
        if known is not None and known.lora_path != wanted.lora_path:
            raise InvalidRequestError(
                f"lora_int_id {wanted.lora_int_id} is the adapter {known.lora_name!r} already.",
                fix="Give each adapter an id of its own.",
                param="lora_int_id",
            )
        return known

    def removed(self, message: AddRequest) -> int | None:
        """Return the id of the request's adapter if it was removed since, else None."""
        adapter = message.inputs.options.lora_request
        return (
            None if adapter is None or adapter.lora_int_id in self._known else adapter.lora_int_id
        )

    async def add(self, wanted: LoRARequest) -> LoRARequest:
        """Load an adapter while steps go on; return at once if it is loaded.

        Returns:
            The adapter with the digest of its content.

        Raises:
            InvalidRequestError: it cannot be served.
            ModelNotFoundError: it was loaded with this digest and then removed.
        """
        known = self.find(wanted)
        while known is None:
            asked = (wanted.lora_name, wanted.lora_int_id, wanted.lora_path)
            answer = await self._call("add_lora", *asked)
            if answer is None:
                await asyncio.sleep(POLL_SECONDS)
            elif "error" in answer:
                raise InvalidRequestError(
                    f"The adapter {wanted.lora_name!r} cannot be served: {answer['error']}",
                    param="lora_path",
                )
            else:
                known = msgspec.structs.replace(wanted, digest=answer["digest"])
                self._known[wanted.lora_int_id] = known
        return known

    async def remove(self, lora_int_id: int) -> bool:
        """Refuse further requests for an adapter; return whether it was loaded.

        Its memory is free once its last request ends.
        """
        if self._known.pop(lora_int_id, None) is None:
            return False
        await self._call("remove_lora", lora_int_id)
        return True

    def _check(self, wanted: LoRARequest) -> None:
        if not self._enabled:
            raise InvalidRequestError(
                "This engine serves no adapters.", fix="Start it with --enable-lora."
            )
        if type(wanted.lora_int_id) is not int or not 1 <= wanted.lora_int_id <= MAX_ID:
            raise InvalidRequestError(
                f"lora_int_id is {wanted.lora_int_id!r}; it must be a positive integer.",
                param="lora_int_id",
            )
        for name in ("lora_name", "lora_path"):
            if not isinstance(value := getattr(wanted, name), str) or not value:
                raise InvalidRequestError(f"{name} is {value!r}; it must be a text.", param=name)
