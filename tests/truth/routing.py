"""Near ties of a mixture's routers, where a token's experts are a matter of rounding.

Two programs that compute in bfloat16 round in different places. If two experts' scores differ by
less than that, the programs may send the token to different experts, and both are right. All later
positions attend to the token, so they may differ, too. Earlier ones may not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

_CHOICES = (torch.ops.aten.topk.default, torch.ops.aten.max.dim)


def first_near_tie(
    exact: PreTrainedModel, rounded: PreTrainedModel, token_ids: list[int]
) -> int | None:
    """Return the first position with a near tie; None if there is none.

    It is near if the last chosen expert's score and the first other one's, in float64, differ by at
    most twice what the model's own rounding has changed a score.

    Args:
        exact: the model in float64.
        rounded: the same in the dtype whose rounding counts.
    """
    ids, first = torch.tensor([token_ids]), len(token_ids)
    recorded = []
    for model in (exact, rounded):
        with torch.inference_mode(), Routers() as routers:
            model(ids, use_cache=False)
        recorded.append(routers.choices)
    for (scores, margins), (near, _) in zip(*recorded, strict=True):
        # Up to each position: behind a tie, the scores may be those of other experts.
        changed = (near - scores).nan_to_num(0.0, 0.0, 0.0).abs().amax(1).cummax(0).values
        ties = (margins <= 2 * changed).nonzero()
        first = min(first, *ties[:1].flatten().tolist(), len(token_ids))
    return first if first < len(token_ids) else None


class Routers(TorchDispatchMode):
    """Records the choices between experts.

    Attributes:
        choices: by router, float64 scores [tokens, n], and by how much it chose them [tokens].
    """

    def __init__(self) -> None:
        super().__init__()
        self.choices: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _CHOICES and args[0].dim() == 2:
            scores = args[0].double()
            chosen = args[1] if func is _CHOICES[0] else 1
            if chosen < scores.shape[1]:
                best = scores.topk(chosen + 1).values
                self.choices.append((scores, best[:, -2] - best[:, -1]))
        return func(*args, **(kwargs or {}))
