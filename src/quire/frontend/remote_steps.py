"""Steps of engine cores in other processes, for callers that step an engine in this one."""

from __future__ import annotations

from quire.frontend.async_llm import AsyncLLM
from quire.frontend.sync_loop import SyncLoop


class RemoteSteps:
    """Waits for steps where `InProcessClient` computes them. Several cores step at the same time.

    Args:
        loop: the one that `engine` was started in.
    """

    def __init__(self, engine: AsyncLLM, loop: SyncLoop) -> None:
        self._engine = engine
        self._loop = loop

    def step(self) -> bool:
        """Wait until a core has reported a step; return False if there is no work.

        A step that was reported since the last call counts.
        """
        stepped = self._engine.stepped
        if not (self._engine.num_unfinished or stepped.is_set()):
            return False
        self._loop.run(stepped.wait())
        stepped.clear()
        return True

    def rest(self) -> None:
        """Do nothing: the cores measure their idle time."""
