"""dspy: predictions through each of its adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import dspy

from tests.clients.tasks import QUESTION, Cat, add


class Answer(dspy.Signature):
    """Answer about a cat."""

    question: str = dspy.InputField()
    cat: Cat = dspy.OutputField()


def scenarios(url: str) -> Iterator[Callable[[], object]]:
    model = dspy.LM("openai/tiny", api_base=f"{url}/v1", api_key="none", cache=False, num_retries=0)

    def run(adapter: dspy.Adapter | None, program: Callable[..., object]) -> None:
        with dspy.context(lm=model, adapter=adapter):
            try:
                program(question=QUESTION)
            except Exception as error:  # the scripted answer does not follow dspy's own format
                if "AdapterParseError" not in repr(type(error)):
                    raise

    def predict() -> None:
        run(dspy.ChatAdapter(), dspy.Predict("question -> answer"))

    def predict_json() -> None:
        run(dspy.JSONAdapter(), dspy.Predict(Answer))

    def react() -> None:
        run(dspy.JSONAdapter(), dspy.ReAct("question -> answer", tools=[add], max_iters=2))

    yield from (predict, predict_json, react)
