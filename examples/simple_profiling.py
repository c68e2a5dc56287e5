"""Record a trace of four prompts: `python examples/simple_profiling.py [model [folder]]`.

Open the file at https://ui.perfetto.dev, or with `tensorboard --logdir FOLDER` and its profiler
plugin. The thread "native ops" has the operations of the kernels, with rows, bytes and FLOPs.
"""

import sys

from quire import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The little dog", "One day, a girl named Lily", "In a big forest"]


def main(model: str = "embedded", folder: str = "./quire_profile") -> None:
    profiler = {"profiler": "torch", "torch_profiler_dir": folder}
    with LLM(model, profiler_config=profiler) as llm:
        params = SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=32)
        llm.start_profile()
        outputs = llm.generate(PROMPTS, params)
        traces = llm.stop_profile()
    for output in outputs:
        print(f"{output.prompt} ...{output.outputs[0].text}\n")
    for trace in traces:
        print(f"The trace is in {trace}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
