"""Adapters as models, by the names that clients use."""

from __future__ import annotations

import itertools
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.lora import LoRARequest
from quire.server.errors import ApiError, invalid

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM


class ServedAdapters:
    """Adapters by the name that clients send as `model`.

    Args:
        folder: contains the adapters that clients may load; None: they may load none.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._served: dict[str, LoRARequest] = {}
        self._loading: set[str] = set()
        self._ids = itertools.count(1)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._served)

    def get(self, name: str) -> LoRARequest | None:
        return self._served.get(name)

    async def load(self, engine: AsyncLLM, name: str, path: str, *, replace: bool = False) -> None:
        """Serve the adapter in the folder `path` as `name`.

        Requests in progress keep their adapter; with `replace`, later ones get the new one.

        Raises:
            ApiError: the name is taken.
            InvalidRequestError: the adapter cannot be served.
        """
        if name in self._loading or (name in self._served and not replace):
            raise invalid(f"The adapter {name!r} has already been loaded.", "lora_name")
        self._loading.add(name)
        try:
            adapter = await engine.add_lora(LoRARequest(name, next(self._ids), path))
        finally:
            self._loading.discard(name)
        before = self._served.pop(name, None)
        self._served[name] = adapter
        if before is not None:
            await engine.remove_lora(before.lora_int_id)

    async def unload(self, engine: AsyncLLM, name: str) -> None:
        """Stop serving it; requests in progress finish.

        Raises:
            ApiError: 404 if no adapter has this name.
        """
        adapter = self._served.pop(name, None)
        if adapter is None:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"The adapter {name!r} is not loaded.",
                param="lora_name",
                code="model_not_found",
            )
        await engine.remove_lora(adapter.lora_int_id)
