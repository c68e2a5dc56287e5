"""Hold answers to a form: `python examples/structured_outputs.py [model]`.

The form is kept whatever the model says. What stands in it makes sense with a larger model.
"""

import sys

from quire import LLM, SamplingParams
from quire.sampling_params import StructuredOutputsParams

PET = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["dog", "cat", "bird"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
    },
    "required": ["name", "kind", "age"],
}
QUERY = """
root ::= "SELECT " column " FROM pets WHERE " column " = " number
column ::= "age" | "weight"
number ::= [0-9] | [1-9] [0-9]
"""
FORMS = {
    "choice": StructuredOutputsParams(choice=["happy", "sad"]),
    "regex": StructuredOutputsParams(regex=r"[a-z]{3,10}@[a-z]{3,10}\.com"),
    "json": StructuredOutputsParams(json=PET, disable_any_whitespace=True),
    "grammar": StructuredOutputsParams(grammar=QUERY),
}


def main(model: str = "embedded") -> None:
    with LLM(model) as llm:
        for name, form in FORMS.items():
            params = SamplingParams(temperature=0.7, seed=1, max_tokens=64, structured_outputs=form)
            [output] = llm.generate("The dog was", params, use_tqdm=False)
            print(f"{name}: {output.outputs[0].text}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
