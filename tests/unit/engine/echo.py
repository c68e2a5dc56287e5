"""A model without weights: bytes for tokens, and each token is the one after the last.

"a" is answered "bcd…z", then the end of the sequence. Any other byte b is followed by b + 1. Tests
start many processes of it, so it imports only what a core needs.
"""

from __future__ import annotations

import time

from quire.core.batch import ModelOutput, SchedulerOutput, token_columns
from quire.core.config import EngineConfig
from quire.core.messages import Ready, TokenLogprobs
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.executor.base import Executor

EOS = 257
VOCAB_SIZE = 258
NUM_BLOCKS = 64
BLOCK_SIZE = 8


def follow(token: int) -> int:
    """The token that the model says after `token`."""
    return EOS if token == ord("z") else (token + 1) % 256


class EchoExecutor(Executor):
    """Computes `follow`; a step takes `seconds`."""

    phases = {"load": 0.0}  # noqa: RUF012
    facts = {"device": "none"}  # noqa: RUF012
    num_blocks = NUM_BLOCKS

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self.tokens: dict[str, list[int]] = {}
        self.params: dict[str, SamplingParams] = {}

    def start(self) -> None: ...

    def shutdown(self) -> None: ...

    def execute(self, batch: SchedulerOutput) -> ModelOutput:
        time.sleep(self._seconds)
        for request_id in batch.removed:
            self.tokens.pop(request_id, None)  # those of a failed step are not here
        for new in batch.new_sequences:
            self.tokens[new.request_id] = list(new.token_ids)
            self.params[new.request_id] = new.sampling_params
        output = ModelOutput(token_columns([]))
        sampled: list[list[int]] = []
        for i, request_id in enumerate(batch.request_ids):
            tokens, params = self.tokens[request_id], self.params[request_id]
            start = int(batch.num_computed_tokens[i])
            end = start + int(batch.num_scheduled_tokens[i])
            if params.prompt_logprobs is not None:
                known = tokens[start + 1 : end + 1]
                output.prompt_logprobs[request_id] = [_logprobs(t) for t in known]
            if end < len(tokens):
                sampled.append([])
                continue
            tokens.append(follow(tokens[-1]))
            sampled.append([tokens[-1]])
            if params.logprobs is not None:
                output.logprobs[request_id] = [_logprobs(tokens[-1])]
        output.sampled_token_ids = token_columns(sampled)
        return output


def _logprobs(token: int) -> TokenLogprobs:
    return TokenLogprobs([token, token, ord("!")], [-0.5, -0.5, -2.0], 1)


def load_echo(config: EngineConfig, executor: object = None) -> tuple[EngineCore, Ready]:
    """What `process.load_core` is for the real model; "slow" takes 20 ms a step."""
    core = EngineCore(config, EchoExecutor(0.02 if config.model_path == "slow" else 0.0))
    return core, core.ready()
