"""Random worlds: a random engine, a random load, and what must come of it.

The real core, scheduler and KV manager run under a virtual clock; after every step all that must
hold is checked. A seed is a world: `run_world(seed)` replays a failure.
"""

from __future__ import annotations

from collections import defaultdict
from random import Random

from msgspec.structs import replace

from quire.core.batch import SchedulerOutput
from quire.core.config import (
    EngineConfig,
    SchedulerConfig,
    SpeculativeConfig,
    StateConfig,
    TierConfig,
)
from quire.core.lora import LoRARequest
from quire.core.messages import AddRequest
from quire.core.model_config import ModelConfig
from quire.core.options import RequestInputs, RequestOptions
from quire.core.request import FinishReason, pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.simulate.clock import VirtualClock
from tests.packed_tokens import unpack_tokens
from tests.simulation.driver import Event, Transcript, drive
from tests.simulation.executor import ModelledExecutor, modelled_tokens

VOCAB = 97
MAX_MODEL_LEN = 10_000
MAX_STEPS = 20_000


class World:
    """What a seed stands for.

    Attributes:
        requests: in the order of their arrival.
        aborts: request id → when its client goes away.
        poison: requests that no step can be computed with.
        adapters: request id → its adapter, of those that have one.
        resets: when the prefix cache is emptied.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        # A quarter of the worlds have adapters, drawn apart: seeds that once found something stand
        # for what they did.
        self._adapter_rng = Random(~seed) if seed % 4 == 1 else None
        # Another quarter, whose prompts' log-probabilities are asked for, and prefixes forgotten.
        self._prompt_rng = Random(~seed) if seed % 4 == 2 else None
        self.block_size = rng.choice([8, 16, 32])
        self.num_blocks = rng.randint(4, 40 if rng.random() < 0.3 else 12)
        self.capacity = self.num_blocks * self.block_size
        self.caching = rng.random() < 0.7
        self.failure_rate = rng.choice([0.0, 0.0, 0.02, 0.1])
        self.limits = self._limits()
        self.window = rng.randint(1, 80) if rng.random() < 0.2 else None
        self.corruption_rate = rng.choice([0.0, 0.0, 0.1])
        self.requests = self._requests()
        self.adapters = self._give_adapters()
        self.resets = self._ask_of_prompts()
        self.aborts = {
            r.request_id: r.arrival_time + rng.expovariate(2.0)
            for r in self.requests
            if rng.random() < 0.15
        }
        poisons = rng.random() < 0.2
        self.poison = {r.request_id for r in self.requests if poisons and rng.random() < 0.2}
        # An eighth of the worlds, and those with drafts, yield any number of the tokens that a step
        # may.
        varied = seed % 8 == 3 or self.limits.speculative is not None
        self._accept_rng = Random(~seed) if varied else None
        if seed % 8 == 7:
            self._go_on(Random(~seed))
        self._name_clients(Random(seed ^ 0xC11E))
        self.clock = VirtualClock()
        config = self._config()
        self.states = self._state_slots(config)
        self.core = EngineCore(config, self._executor(config.tiers), self.clock)

    def _limits(self) -> SchedulerConfig:
        rng = self.rng
        max_num_seqs = rng.randint(1, 12)
        return SchedulerConfig(
            MAX_MODEL_LEN,
            max_num_seqs,
            max_num_batched_tokens=rng.randint(max_num_seqs, 200),
            policy=rng.choice(["fcfs", "fcfs", "priority", "lpm"]),
            preemption_mode=rng.choice(["auto", "recompute", "swap"]),
            max_itl_stretch=rng.choice([None, 1.0, 1.5, 3.0]),
            max_loras=self._adapter_rng.randint(1, 3) if self._adapter_rng else None,
            speculative=self._speculation(),
        )

    def _speculation(self) -> SpeculativeConfig | None:
        """Half of the worlds draft, half of those as many tokens as they may."""
        draw = Random(self.seed ^ 0x5BEC)
        if draw.random() < 0.5:
            return None
        most = draw.randint(1, 6)
        always = ((1, 1000, most),) if draw.random() < 0.5 else ()
        return SpeculativeConfig("ngram", most, num_speculative_tokens_per_batch_size=always)

    def _give_adapters(self) -> dict[str, int]:
        draw, adapters = self._adapter_rng, dict[str, int]()
        if draw is None:
            return adapters
        for request in self.requests:
            if number := draw.randint(0, 4):
                adapters[request.request_id] = number
                wanted = LoRARequest(f"l{number}", number, "", bytes([number]))
                options = replace(request.inputs.options, lora_request=wanted)
                request.inputs = replace(request.inputs, options=options)
        return adapters

    def _name_clients(self, draw: Random) -> None:
        """Three of five worlds have two to four clients; one of them sends most requests."""
        most = draw.choice([0, 0, 1, 2, 3])
        for request in self.requests:
            client = str(draw.randint(1, most)) if most and draw.random() < 0.25 else ""
            options = replace(request.inputs.options, client=client)
            request.inputs = replace(request.inputs, options=options)

    def _ask_of_prompts(self) -> list[float]:
        """Have some requests ask for their prompts' log-probabilities, which are then computed
        whole; when prefixes are forgotten."""
        draw = self._prompt_rng
        if draw is None:
            return []
        for request in self.requests:
            if draw.random() < 0.5:
                params = request.sampling_params.replace(prompt_logprobs=0)
                request.sampling_params = params
        last = self.requests[-1].arrival_time
        return [draw.uniform(0.0, last + 5.0) for _ in range(draw.randint(0, 3))]

    def _go_on(self, draw: Random) -> None:
        """Append second turns: a prompt, its answer and something new. First come those whose
        answer ends with a block, for its last token has no keys and values when the turn ends."""

        def begin(request: AddRequest) -> list[int]:
            return unpack_tokens(request.prompt_token_ids) + self.expected(request)

        time = self.requests[-1].arrival_time
        firsts = sorted(self.requests, key=lambda first: len(begin(first)) % self.block_size != 0)
        for i, first in enumerate(firsts[: draw.randint(1, 4)]):
            time += draw.uniform(0.0, 5.0)
            prompt = begin(first) + [draw.randrange(VOCAB) for _ in range(draw.randint(1, 20))]
            params = SamplingParams(temperature=0.0, max_tokens=draw.randint(1, 20))
            options = replace(first.inputs.options, priority=draw.randint(0, 3), lora_request=None)
            inputs = RequestInputs(options, (0, 1))
            again = AddRequest(f"t{i}", pack_tokens(prompt), params, time, inputs)
            self.requests.append(again)

    def _requests(self) -> list[AddRequest]:
        rng = self.rng
        stems = [self._tokens(rng.randint(0, 6) * 16) for _ in range(3)]
        time, requests = 0.0, list[AddRequest]()
        for i in range(rng.randint(1, 20)):
            time += rng.expovariate(rng.choice([0.5, 5.0, 500.0]))
            if requests and rng.random() < 0.3:  # asked again, word for word
                prompt = rng.choice(requests).prompt_token_ids
            else:
                tail = rng.choice([rng.randint(1, 60), self.block_size, 2 * self.block_size])
                prompt = pack_tokens(rng.choice(stems) + self._tokens(tail))
            params = SamplingParams(
                temperature=0.0,
                max_tokens=rng.randint(1, 40),
                min_tokens=0,
                stop_token_ids=[rng.randrange(VOCAB)] if rng.random() < 0.3 else None,
                ignore_eos=rng.random() < 0.5,
            )
            salt = rng.choice([None, None, "salt"])
            inputs = RequestInputs(RequestOptions(rng.randint(0, 3), salt), (0, 1))
            requests.append(AddRequest(f"r{i}", prompt, params, time, inputs))
        return requests

    def _tiers(self) -> TierConfig:
        draw = self.rng
        swap, offload = (draw.choice([0, draw.randint(1, 30)]) for _ in range(2))
        files = draw.choice([0, draw.randint(1, 20)]) if offload else 0
        draw = Random(self.seed ^ 0x71E2)
        states = draw.randint(1, 10) if has_states(self.seed) and offload else 0
        if states:
            swap = 0
        return TierConfig(swap, offload, states, "modelled" if files else None, files)

    def _state_slots(self, config: EngineConfig) -> StateConfig | None:
        """Half of the worlds with recurrent layers have hardly any room for states."""
        if not has_states(self.seed):
            return None
        draw = Random(self.seed ^ 0x57A7E)
        draw.random()
        speculative = self.limits.speculative
        depth = speculative.num_speculative_tokens if speculative else 0
        each = 2 + depth + (config.num_scheduler_steps > 1)
        most = draw.choice([each + 3, self.limits.max_num_seqs * each + 40])
        return StateConfig(
            draw.randint(each + 1, most), each, self.block_size * draw.choice([1, 2, 5, 1000])
        )

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCAB) for _ in range(count)]

    def _config(self) -> EngineConfig:
        return EngineConfig(
            model_path="modelled",
            model=ModelConfig(
                "llama", VOCAB, 1, 1, 1, 1, 1, 1, MAX_MODEL_LEN, sliding_window=self.window
            ),
            load_format="dummy",
            dtype="float32",
            quantization=None,
            kv_cache_dtype="float32",
            seed=0,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            kv_cache_memory_bytes=None,
            memory_budget_bytes=0,
            enable_prefix_caching=self.caching,
            scheduler=self.limits,
            ops="reference",
            num_threads=1,
            tiers=self._tiers(),
            async_scheduling=self.rng.random() < 0.5,
            num_scheduler_steps=self.rng.choice([1, 1, 2, 5]),
        )

    def _executor(self, tiers: TierConfig) -> ModelledExecutor:
        delays = Random(self.seed ^ 0xDE1A)
        return ModelledExecutor(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            vocab_size=VOCAB,
            clock=self.clock,
            window=self.window,
            accepts=self._accepts,
            fails=self._fails,
            corrupts=lambda: self.rng.random() < self.corruption_rate,
            states=self.states,
            files=tiers.disk_bytes if tiers.directory else None,
            delays=lambda: delays.random() < 0.6,
        )

    def _accepts(self, most: int) -> int:
        return most if self._accept_rng is None else self._accept_rng.randint(0, most)

    def _fails(self, batch: SchedulerOutput) -> bool:
        """Check a step before it is computed; whether it is to fail."""
        counts = batch.num_scheduled_tokens.tolist()
        total, further = sum(counts), 0
        if batch.max_new_tokens is not None:
            speculative = self.limits.speculative
            depth = speculative.num_speculative_tokens if speculative else 0
            assert batch.num_passes <= self.core.config.num_scheduler_steps, "too many passes"
            assert batch.width <= batch.num_passes * (1 + depth), "too many tokens at once"
            further = sum(max(most - 1, 0) for most in batch.max_new_tokens.tolist())
        assert total + further == batch.total_num_scheduled_tokens, "tokens were miscounted"
        first = total + (further if batch.num_passes == 1 else 0)
        assert first <= self.limits.max_num_batched_tokens, "budget exceeded"
        assert len(counts) <= self.limits.max_num_seqs, "too many in one step"
        assert min(counts, default=1) >= 1, "a request was scheduled for nothing"
        assert len(set(batch.request_ids)) == len(batch.request_ids), "scheduled twice"
        adapters = {self.adapters[name] for name in batch.request_ids if name in self.adapters}
        assert len(adapters) <= (self.limits.max_loras or 0), "too many adapters in one step"
        return self.rng.random() < self.failure_rate or not self.poison.isdisjoint(
            batch.request_ids
        )

    def run(self) -> dict[str, Transcript]:
        """Live through it, and tell what every request was told."""
        arrivals = [Event(r.arrival_time, r) for r in self.requests]
        aborts = [Event(time, request_id) for request_id, time in self.aborts.items()]
        resets = [Event(time, None) for time in self.resets]
        transcripts = drive(
            self.core,
            self.clock,
            arrivals + aborts + resets,
            after_step=self.core.scheduler.check_integrity,
            max_steps=MAX_STEPS,
        )
        self.core.scheduler.check_integrity()
        return transcripts

    def expected(self, request: AddRequest) -> list[int]:
        """The tokens that a request gets if nothing befalls it."""
        params = request.sampling_params
        assert params.max_tokens is not None
        stops = set(params.stop_token_ids or ()) | (
            set() if params.ignore_eos else set(request.inputs.eos_token_ids)
        )
        prompt = unpack_tokens(request.prompt_token_ids)
        adapter = self.adapters.get(request.request_id, 0)
        answer = modelled_tokens(prompt, params.max_tokens, VOCAB, adapter)
        end = next((i + 1 for i, token in enumerate(answer) if token in stops), len(answer))
        return answer[:end]

    def check(self, transcripts: dict[str, Transcript]) -> None:
        """Assert that everybody got exactly what is theirs, and in turn."""
        for request in self.requests:
            transcript = transcripts[request.request_id]
            expected = self.expected(request)
            self._check_prompt(request, transcript)
            last = transcript.last
            if last is not None and last.finish_reason is FinishReason.ERROR:
                growth = len(unpack_tokens(request.prompt_token_ids))
                growth += request.sampling_params.max_tokens or 0
                guilty = request.request_id in self.poison or growth > self.capacity
                assert guilty or self.failure_rate > 0, "failed for no reason"
                assert transcript.token_ids == expected[: len(transcript.token_ids)]
            elif request.request_id in self.aborts and not transcript.finished:
                assert transcript.token_ids == expected[: len(transcript.token_ids)]
            else:
                assert request.request_id not in self.poison, "computed what cannot be"
                assert transcript.token_ids == expected, f"{request.request_id} got other tokens"
                assert transcript.finished, f"{request.request_id} was never told its end"
        if self.limits.policy == "fcfs" and not self.adapters:  # else some are overtaken
            begun = defaultdict[str, list[float]](list)
            for request in self.requests:
                last = transcripts[request.request_id].last
                if last and last.scheduled_time:
                    begun[request.inputs.options.client].append(last.scheduled_time)
            for times in begun.values():
                assert times == sorted(times), "somebody was served before their turn"

    @staticmethod
    def _check_prompt(request: AddRequest, transcript: Transcript) -> None:
        """Each of its tokens but the first is told of once, with the first token of the answer."""
        wanted = request.sampling_params.prompt_logprobs is not None and transcript.token_ids
        assert (transcript.prompt_logprobs is not None) == bool(wanted), "a prompt was not told of"
        if transcript.prompt_logprobs is not None:
            prompt = unpack_tokens(request.prompt_token_ids)
            told = [(p.token_ids[0], -p.logprobs[0]) for p in transcript.prompt_logprobs]
            assert told == [(token, i) for i, token in enumerate(prompt)][1:], "other log-probs"


def has_states(seed: int) -> bool:
    """Return whether a seed's world is one of the third that have recurrent layers."""
    return Random(seed ^ 0x57A7E).random() <= 1 / 3


def run_world(seed: int) -> World:
    """Run one world and check all that came of it."""
    world = World(seed)
    world.check(world.run())
    return world
