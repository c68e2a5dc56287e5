"""Methods of vLLM's engines that Quire refuses by name."""

from __future__ import annotations

from typing import Any, NoReturn

from quire.core.errors import InvalidRequestError

_NO_CODE = "runs the caller's code in vLLM's workers; Quire does not support this."


class NotThere:
    """Raises errors that name a replacement."""

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise InvalidRequestError(
            f"collective_rpc {_NO_CODE}",
            fix="Use reset_prefix_cache, sleep and wake_up, a LoRARequest, or start_profile.",
            param="collective_rpc",
        )

    def apply_model(self, func: Any) -> NoReturn:
        raise InvalidRequestError(
            f"apply_model {_NO_CODE}", fix="model_config has its shape.", param="apply_model"
        )

    def reward(self, prompts: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise InvalidRequestError(
            "reward is for vLLM's own reward models.",
            fix="Use classify with a sequence classifier, or score.",
            param="reward",
        )
