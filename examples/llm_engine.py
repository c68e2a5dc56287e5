"""Step an engine by hand: `python examples/llm_engine.py [flags of quire serve's engine]`.

Requests may join between any two steps, and each step gives the outputs that it made.
"""

import sys

from quire import EngineArgs, LLMEngine, SamplingParams
from quire.utils import FlexibleArgumentParser

REQUESTS = [
    ("Once upon a time", SamplingParams(temperature=0.0, max_tokens=8, logprobs=1)),
    ("The little dog", SamplingParams(temperature=0.8, top_k=5, seed=1, max_tokens=16)),
    ("In a big forest", SamplingParams(n=2, temperature=0.8, seed=2, max_tokens=12)),
]


def main(argv: list[str]) -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description=__doc__))
    waiting = list(enumerate(REQUESTS))
    with LLMEngine.from_engine_args(EngineArgs.from_cli_args(parser.parse_args(argv))) as engine:
        while waiting or engine.has_unfinished_requests():
            if waiting:  # one request more before each step
                number, (prompt, params) = waiting.pop(0)
                engine.add_request(str(number), prompt, params)
            for output in engine.step():
                if output.finished:
                    for answer in output.outputs:
                        print(f"{output.request_id}: {output.prompt} ...{answer.text}")


if __name__ == "__main__":
    main(sys.argv[1:])
