"""Engine cores behind one front end: who gets a request, and calls to all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from quire.core.config import EngineConfig
from quire.core.errors import EngineDeadError, InvalidRequestError, QuireError
from quire.core.messages import AbortRequests, AddRequest, CallResult, CoreInput, Ready, StepOutputs
from quire.frontend.client.core_client import stop_together
from quire.frontend.client.halves import Halves
from quire.frontend.client.interface import CoreClient
from quire.frontend.client.merged_calls import call_all
from quire.frontend.client.replica_configs import replica_configs, shared_memory
from quire.frontend.client.standby import FarCores, Standby
from quire.frontend.client.supervisor import CoreState, Replica, ReplicaUser
from quire.parallel.shared_memory import SharedFile
from quire.routing.halves import Ended, most_alone
from quire.routing.ledger import Ledger
from quire.system.tasks import all_of

if TYPE_CHECKING:
    from quire.frontend.output.request_state import RequestState


class FleetUser(ReplicaUser, Protocol):
    """The sender of requests to a fleet."""

    def on_message(self, replica: int, message: StepOutputs | CallResult) -> None:
        """Take a message of a replica's core, and give it to `Fleet.read`."""


class Fleet:
    """The replicas of an engine; mostly one.

    With several, the router of `quire.routing` chooses one for each request. All sequences of a
    request go to the same one. With `prefill_replicas`, one computes the prompt and another
    answers it (`halves`).

    Args:
        config: of one replica.
        numbers: of the replicas. They begin at 0 unless other servers have more replicas.
        first: the first core's client, if it exists already.
        memory: of all KV caches, if that core maps it already.
        gate: where other machines offer the cores of some replicas.

    Attributes:
        stepped: set after each step and each loss of a core.
    """

    def __init__(
        self,
        connect: Callable[[], CoreClient],
        config: EngineConfig,
        user: FleetUser,
        numbers: range = range(1),
        first: CoreClient | None = None,
        memory: SharedFile | None = None,
        gate: FarCores | None = None,
    ) -> None:
        self._user, self._numbers, count = user, numbers, len(numbers)
        self.stepped = asyncio.Event()
        self._memory = memory or shared_memory(config, count)
        self._gate, far = gate, gate.ranks if gate is not None else range(0)
        configs = replica_configs(config, numbers, self._memory, far)
        self._standby = Standby(connect)
        standby = [
            gate.standby(rank) if gate and rank in far else self._standby for rank in numbers
        ]
        self.replicas = [
            Replica(number, own, each, self, user.on_message, None if number else first)
            for number, (own, each) in enumerate(zip(standby, configs, strict=True))
        ]
        self._routes = None
        if count > 1:
            from quire.frontend.client.routes import Routes  # NumPy

            self._routes = Routes(config, count)
        self._halves = None
        transfer, shared = config.transfer, configs[0].shared_kv
        if transfer and transfer.prefill_replicas and config.pooling is None:
            loans = Ledger(shared, self._tell) if shared else None
            from quire.models.cost import first_guess  # NumPy

            alone = most_alone(first_guess(config), copied=loans is None)
            self._halves = Halves(transfer.prefill_replicas, count, loans, alone)

    @property
    def separate(self) -> bool:
        """Return whether the cores have their own processes."""
        return self.replicas[0].client.separate

    @property
    def error(self) -> QuireError | None:
        """Return what a request must raise now; None if a replica takes it.

        Without a ready replica it is the error of one that will be ready again, if there is one.
        """
        found: QuireError | None = None
        for replica in self.replicas:
            error = replica.error
            if error is None:
                return None
            if found is None or replica.state is not CoreState.DEAD:
                found = error
        return found

    @property
    def is_dead(self) -> bool:
        """Return whether no core runs, and none will start."""
        return all(replica.state is CoreState.DEAD for replica in self.replicas)

    async def start(self) -> list[Ready]:
        """Start all cores and wait until their models are loaded."""
        return await all_of(replica.start() for replica in self.replicas)

    def watch(self, seconds: float) -> None:
        """Replace cores that are silent for `seconds` while they have work."""
        for replica in self.replicas:
            replica.watch(seconds)

    # -- requests -------------------------------------------------------------------------

    def check_rank(self, rank: int | None) -> None:
        """Raise `InvalidRequestError` if no replica has this number."""
        if rank is not None and rank not in self._numbers:
            known = f"{self._numbers[0]} to {self._numbers[-1]}"
            raise InvalidRequestError(
                f"data_parallel_rank is {rank}; replicas are {known}.",
                fix="Leave it out: the router then chooses the replica.",
                param="data_parallel_rank",
            )

    def choose(
        self, state: RequestState, rank: int | None = None
    ) -> tuple[Replica, Sequence[AddRequest]]:
        """Return the replica that gets a request, and the messages to send to it.

        Args:
            rank: the wanted replica; None lets the router choose among the ready ones.

        Raises:
            QuireError: no replica is ready, or the wanted one is not.
        """
        children = state.running
        if rank is not None:
            return self._place(state, self._numbers.index(rank), children)
        if (error := self.error) is not None:
            raise error
        ready, halves = self._ready, self._halves
        if halves is None:
            return self._place(state, self._choose(children[0], ready), children)
        if self._needs_prefill(children[0], ready):
            chosen = self._choose(children[0], ready & halves.prompts)
            return self._place(state, chosen, [halves.begin(state)])
        chosen = self._choose(children[0], ready & halves.answers or ready)
        return self._place(state, chosen, children)

    @property
    def _ready(self) -> int:
        """Return the mask of the ready replicas."""
        return sum(1 << replica.number for replica in self.replicas if replica.is_ready)

    def _needs_prefill(self, first: AddRequest, ready: int) -> bool:
        """Return whether a replica for prompts should compute a request's prompt."""
        assert self._halves is not None
        assert self._routes is not None
        if not ready & self._halves.prompts or not self._halves.divides(first):
            return False
        answers, prompt = ready & self._halves.answers, self._routes.prompt_of(first)
        return answers > 0 and self._routes.num_uncached(prompt, answers) > self._halves.alone

    def _choose(self, first: AddRequest, among: int) -> int:
        return 0 if not (known := self._routes) else known.choose(known.prompt_of(first), among)

    def _place(
        self, state: RequestState, chosen: int, messages: Sequence[AddRequest]
    ) -> tuple[Replica, Sequence[AddRequest]]:
        """Note that a replica gets these messages of a request."""
        replica = self.replicas[chosen]
        if replica.error is not None:
            raise replica.error
        state.replica = chosen
        if self._routes is not None:
            prompt = self._routes.prompt_of(messages[0])
            for message in messages:
                self._routes.add(chosen, message.request_id, prompt)
        replica.wake_watchdog()
        return replica, messages

    def _go_on(self, halves: Halves, state: RequestState, ended: Ended) -> None:
        """Send what is left of a request to a replica for answers, if one is ready."""
        among = self._ready & halves.answers or 1 << state.replica
        chosen = self._choose(ended.children[0], among)
        messages = halves.go_on(chosen, ended)
        with contextlib.suppress(QuireError):  # a loss is reported, and moves the request
            replica, _ = self._place(state, chosen, ended.children)
            for message in messages:
                replica.send(message)

    def _tell(self, replica: int, message: CoreInput) -> None:
        """Send a message to a replica, if it is ready."""
        if self.replicas[replica].is_ready:
            with contextlib.suppress(EngineDeadError):
                self.replicas[replica].send(message)

    def abort(self, replica: int, ids: list[str]) -> None:
        """Drop sequences from a replica; ignore unknown ones and a lost core."""
        with contextlib.suppress(EngineDeadError):
            self.send(replica, AbortRequests(ids))

    def send(self, replica: int, message: CoreInput) -> None:
        """Send a message about requests that a replica has; raises as `CoreClient.send`."""
        if self._routes is not None and isinstance(message, AbortRequests):
            if (halves := self._halves) is not None:
                message = AbortRequests(halves.abort(message.request_ids))
                if halves.prompts >> replica & 1:  # a stop string may end what has just moved on
                    for other in range(halves.prompts.bit_length(), len(self.replicas)):
                        self._tell(other, message)
            for request_id in message.request_ids:
                self._routes.remove(request_id)
        self.replicas[replica].send(message)

    # -- calls ----------------------------------------------------------------------------

    async def call(self, method: str, *args: Any) -> Any:
        """Run a utility method in all ready cores; return one result for all of them.

        Cores that are lost meanwhile do not count, unless all are.
        """
        if len(self.replicas) == 1:
            return await self.replicas[0].calls.call(method, *args)
        if (error := self.error) is not None:
            raise error
        asked = [replica for replica in self.replicas if replica.is_ready]
        return await call_all([replica.calls for replica in asked], method, args)

    def tell(self, method: str, *args: Any) -> None:
        """Send a call to all ready cores and do not wait for answers."""
        for replica in self.replicas:
            if replica.is_ready:
                replica.calls.tell(method, *args)

    # -- life -----------------------------------------------------------------------------

    async def sleep(self) -> None:
        """End all cores until `wake_up`; raises the error of a replica that is not ready."""
        for replica in self.replicas:
            if replica.error is not None:
                raise replica.error
        await all_of(replica.sleep() for replica in self.replicas)
        self._forget_all()

    async def wake_up(self) -> list[Ready]:
        """Start all cores after `sleep`; if one does not start, all sleep on and this raises."""
        waking = (replica.wake_up() for replica in self.replicas)
        results = await asyncio.gather(*waking, return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        if failed:
            await all_of(replica.sleep() for replica in self.replicas if replica.is_ready)
            raise failed[0]
        return [result for result in results if isinstance(result, Ready)]

    def hurry(self) -> None:
        """Shorten the wait of `shutdown`."""
        for replica in self.replicas:
            replica.hurry()
        self._standby.hurry()

    def shutdown(self) -> None:
        """Stop all cores for good, at the same time. Harmless when repeated."""
        if self._gate is not None:  # it says goodbye before cores seem to be lost
            self._gate.close()
        stop_together([self._standby.client, *(replica.client for replica in self.replicas)])
        self._standby.shutdown()
        for replica in self.replicas:
            replica.shutdown()
        if self._memory is not None:
            self._memory.close()

    def _forget_all(self) -> None:
        if self._routes is not None:
            for replica in self.replicas:
                self._routes.forget(replica.number)
        if self._halves is not None and self._halves.loans is not None:
            self._halves.loans.clear()
        if self._memory is not None:
            self._memory.empty()

    # -- what replicas report -------------------------------------------------------------

    def read(self, replica: int, message: StepOutputs | CallResult) -> StepOutputs | None:
        """Return a step's outputs; None for the result of a call, which its caller gets."""
        step = self.replicas[replica].read(message)
        if step is not None:
            if self._routes is not None:
                self._routes.note(replica, step)
            if (halves := self._halves) is not None:
                if halves.loans is not None:
                    halves.loans.end(replica, step.returned)
                for state, ended in halves.take(step):
                    self._go_on(halves, state, ended)
            self.stepped.set()  # who waits goes on after the step's outputs
        return step

    def on_lost(self, replica: int, error: QuireError) -> None:
        """See `ReplicaUser`."""
        if self._routes is not None:
            self._routes.forget(replica)
        if self._halves is not None:
            self._halves.forget(replica)
        self._user.on_lost(replica, error)
        self.stepped.set()

    def on_restored(self, replica: int, ready: Ready) -> None:
        """See `ReplicaUser`."""
        if self._halves is not None and self._halves.loans is not None:
            self._halves.loans.restore(replica)
        self._user.on_restored(replica, ready)

    def on_dead(self, replica: int, error: QuireError) -> None:
        """See `ReplicaUser`."""
        self._user.on_dead(replica, error)
        self.stepped.set()

    def has_work(self, replica: int) -> bool:
        """See `ReplicaUser`."""
        return self._user.has_work(replica)
