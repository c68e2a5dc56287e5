"""Quire itself, offline, with the interface of its peers."""

from __future__ import annotations

from quire.bench.peers.driver import Options, main
from quire.core.outputs import RequestMetrics
from quire.core.sampling_params import SamplingParams


class Quire:
    """`LLM.generate`."""

    def __init__(self, options: Options) -> None:
        import quire

        self._llm = quire.LLM(**options.own)
        self.vocab_size: int = self._llm.model_config.vocab_size
        self.name = f"quire {quire.__version__}"

    def generate(self, prompts: list[list[int]], output_len: int) -> list[RequestMetrics]:
        params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(requests, params, use_tqdm=False)
        return [output.metrics for output in outputs]


if __name__ == "__main__":
    main(Quire)
