"""A model in the terminal: start it, stream its text, report its speed."""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from quire.core.errors import ConfigError, InvalidRequestError, QuireError
from quire.core.sampling_params import RequestOutputKind, SamplingParams
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import Flags
from quire.system import env
from quire.system.garbage import no_collection
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.core.outputs import RequestOutput
    from quire.frontend.async_llm import AsyncLLM

DEFAULT_MAX_TOKENS = 256


@dataclass(slots=True)
class Speed:
    """Tokens of one generation, and when the engine had the first and the last one.

    Seconds count from the request's arrival.
    """

    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    finish_reason: str | None = None

    def __str__(self) -> str:
        parts = [f"{self.tokens} tokens"]
        if self.tokens > 1 and self.last > self.first:
            parts.append(f"{(self.tokens - 1) / (self.last - self.first):.1f} tok/s")
        if self.tokens:
            parts.append(f"first token after {self.first:.2f} s")
        parts.append(f"ended by {self.finish_reason or 'interrupt'}")
        return ", ".join(parts)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add flags for `SamplingParams`; unset values come from the model."""
    add = Flags(parser.add_argument_group("sampling"))
    add(
        "--max-tokens",
        None,
        f"most tokens to generate (default: {DEFAULT_MAX_TOKENS}; in a chat, the rest of the "
        "context)",
        type=int,
    )
    text = "0 takes the likeliest token; more is more random (default of all these: the model's)"
    add("--temperature", None, text, type=float)
    add("--top-p", None, "sample from the likeliest tokens with this total probability", type=float)
    add("--top-k", None, "sample from so many of the likeliest tokens", type=int)
    text = "leave out tokens that are less likely than this share of the likeliest one"
    add("--min-p", None, text, type=float)
    text = "above 1 makes tokens that were used already less likely"
    add("--repetition-penalty", None, text, type=float)
    add("--stop", None, "text that ends the answer; repeatable", action="append", metavar="TEXT")
    add("--ignore-eos", False, "continue after the model's end token")
    Flags(parser)(
        "-v --verbose",
        False,
        "log the start of the engine (default: only warnings, unless QUIRE_LOG_LEVEL is set)",
    )


def be_quiet(namespace: argparse.Namespace) -> None:
    """Log only warnings, here and in the engine's processes, unless the user asks for more."""
    if not namespace.verbose:
        env.set_defaults(QUIRE_LOG_LEVEL="WARNING")


_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop", "max_tokens")


def given_sampling(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the `SamplingParams` fields given by flags.

    Raises:
        ConfigError: a value is out of range for any model.
    """
    given = {name: getattr(namespace, name) for name in _NAMES}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        SamplingParams(**given)
    except InvalidRequestError as error:
        raise ConfigError(str(error), param=error.param) from None
    return given


async def start_engine(args: EngineArgs) -> AsyncLLM:
    """Start an engine; its core loads the model while the front end is imported here.

    It has no tokenizer pool, because there is only one request at a time.
    """
    args = replace(args, tokenizer_pool_size=0)
    with no_collection():
        from quire.frontend.client.core_client import ProcessClient
        from quire.frontend.client.core_process import core_command

        core = ProcessClient.begun(core_command(args))
        from quire.frontend.client.configure import configure

        configured = configure(args, core)
        from quire.frontend.async_llm import AsyncLLM

    return await AsyncLLM.start(args, configured)


def _to_stdout(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class Session:
    """An engine and its event loop, for a program that waits for one answer at a time.

    The loop runs only during an answer, so `input()` and Ctrl-C work as usual between answers.
    """

    def __init__(self, args: EngineArgs) -> None:
        self._runner = asyncio.Runner()
        try:
            self.engine = self._runner.run(start_engine(args))
        except BaseException:
            self._runner.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.shutdown()
        self._runner.close()

    def params(
        self,
        namespace: argparse.Namespace,
        num_prompt_tokens: int,
        most: int | None = DEFAULT_MAX_TOKENS,
    ) -> SamplingParams:
        """Return sampling parameters: the flags over the model's defaults.

        Args:
            most: default of --max-tokens; None means all that fit the context.
        """
        fields = {**self.engine.default_sampling_params, **given_sampling(namespace)}
        if namespace.max_tokens is None:
            room = max(1, self.engine.max_total_tokens - num_prompt_tokens)
            fields["max_tokens"] = room if most is None else min(most, room)
        return SamplingParams(
            **fields, ignore_eos=namespace.ignore_eos, output_kind=RequestOutputKind.DELTA
        )

    def stream(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        write: Callable[[str], None] = _to_stdout,
    ) -> tuple[str, Speed]:
        """Generate, writing the text as it arrives; Ctrl-C ends the generation, not the program.

        Returns:
            The text written and the speed.
        """
        speed = Speed()
        pieces: list[str] = []

        async def run() -> None:
            outputs: AsyncGenerator[RequestOutput, None] = self.engine.generate(
                prompt, params, uuid.uuid4().hex
            )
            async with aclosing(outputs):
                async for output in outputs:
                    completion = output.outputs[0]
                    pieces.append(completion.text)
                    write(completion.text)
                    times = output.metrics
                    speed.first = times.first_token_time - times.arrival_time
                    speed.last = times.last_token_time - times.arrival_time
                    speed.tokens += len(completion.token_ids)
                    speed.finish_reason = completion.finish_reason
            if speed.finish_reason == "error":
                raise QuireError(f"The engine failed: {completion.stop_reason}")

        try:
            self._runner.run(run())
        except KeyboardInterrupt:
            speed.finish_reason = None
        return "".join(pieces), speed
