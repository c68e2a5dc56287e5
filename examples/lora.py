"""Answer with an adapter and without: `python examples/lora.py MODEL ADAPTER`.

ADAPTER is a folder as PEFT writes it, for that model.
"""

import sys

from quire import LLM, SamplingParams
from quire.lora.request import LoRARequest


def main(model: str, adapter: str, prompt: str = "once upon") -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8)
    with LLM(model, enable_lora=True, max_loras=1, max_lora_rank=16) as llm:
        outputs = llm.generate(
            [prompt, prompt],
            params,
            use_tqdm=False,
            lora_request=[None, LoRARequest("tuned", 1, adapter)],
        )
    for name, output in zip(("without", "with"), outputs, strict=True):
        print(f"{name}: {output.outputs[0].text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
