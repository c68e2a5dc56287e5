"""Compare texts by their embeddings: `python examples/embed.py MODEL`.

Any embedding model does, for example BAAI/bge-small-en-v1.5.
"""

import sys

from quire import LLM

TEXTS = ["A dog runs.", "A puppy plays.", "Stocks fell today."]


def main(model: str) -> None:
    with LLM(model, runner="pooling", convert="embed", enforce_eager=True) as llm:
        for text, output in zip(TEXTS, llm.embed(TEXTS, use_tqdm=False), strict=True):
            vector = output.outputs.embedding
            print(f"{text} {len(vector)} numbers: {vector[0]:.3f}, {vector[1]:.3f} …")
        scores = llm.score(TEXTS[0], TEXTS, use_tqdm=False)
        for text, output in zip(TEXTS, scores, strict=True):
            print(f"{output.outputs.score:.3f} {TEXTS[0]} | {text}")


if __name__ == "__main__":
    main(sys.argv[1])
