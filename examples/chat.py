"""Answer conversations offline: `python examples/chat.py [model]`."""

import sys

from quire import LLM, SamplingParams

CONVERSATIONS = [
    [
        {"role": "system", "content": "You tell stories for small children."},
        {"role": "user", "content": "Tell me a story about a dog."},
    ],
    [{"role": "user", "content": "Tell me a story about the sea."}],
]


def main(model: str = "embedded") -> None:
    params = SamplingParams(temperature=0.7, seed=1, max_tokens=32)
    with LLM(model) as llm:
        for messages, output in zip(
            CONVERSATIONS, llm.chat(CONVERSATIONS, params, use_tqdm=False), strict=True
        ):
            print(f"user: {messages[-1]['content']}\nassistant: {output.outputs[0].text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
