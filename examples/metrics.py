"""Print what the engine has counted: `python examples/metrics.py [model]`."""

import sys

from quire import LLM, SamplingParams
from quire.v1.metrics.reader import Counter, Gauge, Histogram

PROMPTS = ["Once upon a time", "The little dog"]


def main(model: str = "embedded") -> None:
    with LLM(model) as llm:
        llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=16), use_tqdm=False)
        for metric in llm.get_metrics():
            match metric:
                case Counter():
                    print(f"{metric.name} {metric.value:.0f}")
                case Gauge():
                    print(f"{metric.name} is {metric.value:.3f} now")
                case Histogram(count=count) if count:
                    print(f"{metric.name} {count} times, {metric.sum / count:.4f} in the mean")


if __name__ == "__main__":
    main(*sys.argv[1:2])
