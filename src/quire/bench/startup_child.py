"""The process that `bench.startup` starts: load the model, generate a token, report the times."""

from __future__ import annotations

import time

BEGUN = time.monotonic()  # before other imports, because they count

import json  # noqa: E402
import sys  # noqa: E402


def main(payload: str) -> None:
    """Print moments on the monotonic clock, and the engine's own phases, as one line of JSON.

    Args:
        payload: JSON of `EngineArgs`' fields, and `input_len`.
    """
    from quire.system.garbage import no_collection

    with no_collection():  # as in `from quire import LLM`
        from quire.core.sampling_params import SamplingParams
        from quire.frontend.llm import LLM

    imported = time.monotonic()
    fields = json.loads(payload)
    input_len = fields.pop("input_len")
    with LLM(**fields) as llm:
        ready = time.monotonic()
        prompt = [i % llm.model_config.vocab_size for i in range(1, input_len + 1)]
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        [output] = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
        moments = {"begun": BEGUN, "imported": imported, "ready": ready}
        moments["first_token"] = output.metrics.first_token_time
        report = {**moments, "phases": llm.phases, "dtype": llm.resolved.config.dtype}
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
