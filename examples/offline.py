"""Generate text in this process: `python examples/offline.py [model]`."""

import sys

from quire import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The little dog"]


def main(model: str = "embedded") -> None:
    with LLM(model) as llm:
        params = SamplingParams(temperature=0.7, seed=1, max_tokens=48)
        for output in llm.generate(PROMPTS, params):
            print(f"{output.prompt} ...{output.outputs[0].text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
