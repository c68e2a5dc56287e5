"""Two questions about one long table: `python examples/automatic_prefix_caching.py [model]`.

The second question finds the table's keys and values in the cache, and its first token comes
sooner. The built-in model tells stories and knows no answers; any chat model does.
"""

import sys

from quire import LLM, SamplingParams

NAMES = ["Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hope", "Ida", "Jack"]
PETS = ["dog", "cat", "bird", "fish", "frog"]
TOWNS = ["Oak Hill", "Red Bay", "Sun Lake", "Green Park"]
ROWS = 36


def table() -> str:
    lines = ["| Number | Name | Pet | Town |", "|---|---|---|---|"]
    for number in range(ROWS):
        name, pet = NAMES[number % len(NAMES)], PETS[number * 3 % len(PETS)]
        lines.append(f"| {number} | {name} | {pet} | {TOWNS[number * 7 % len(TOWNS)]} |")
    return "\n".join(lines)


def ask(llm: LLM, prompt: str) -> None:
    """Print the answer, and how long its first token took."""
    params = SamplingParams(temperature=0.0, max_tokens=16)
    [output] = llm.generate(prompt, params, use_tqdm=False)
    first_token = output.metrics.first_token_time - output.metrics.arrival_time
    print(
        f"{len(output.prompt_token_ids)} tokens, {output.num_cached_tokens} of them cached: "
        f"first token after {first_token * 1e3:.1f} ms; answer:{output.outputs[0].text!r}"
    )


def main(model: str = "embedded") -> None:
    with LLM(model) as llm:
        ask(llm, "Hello")  # what only an engine's first request pays for
        for number in (3, 8):
            ask(llm, f"{table()}\nQuestion: which pet has number {number}? Answer:")


if __name__ == "__main__":
    main(*sys.argv[1:2])
