"""Print answers token by token: `python examples/async_streaming.py [model]`."""

import asyncio
import sys

from quire import AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from quire.sampling_params import RequestOutputKind

PROMPTS = {"fox": "Once upon a time, a fox", "boat": "The little boat"}


async def tell(engine: AsyncLLMEngine, name: str, prompt: str) -> None:
    """Collect one story; each output holds what is new since the one before."""
    params = SamplingParams(
        temperature=0.7, seed=1, max_tokens=24, output_kind=RequestOutputKind.DELTA
    )
    outputs = engine.generate(prompt, params, request_id=name)
    pieces = [output.outputs[0].text async for output in outputs]
    print(f"{name}, {len(pieces)} pieces: {prompt}{''.join(pieces)}")


async def main(model: str = "embedded") -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=model))
    try:
        await asyncio.gather(*(tell(engine, name, prompt) for name, prompt in PROMPTS.items()))
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
