"""llama.cpp by its C API, from llama-cpp-python.

A preset is read from a GGUF file, which is written once (see `write_gguf`). One `llama_decode` is
one step of all sequences; the greedy choice is NumPy's, which costs less than llama.cpp's own
sampler.
"""

from __future__ import annotations

import ctypes
import time
from importlib.metadata import version
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt

from quire.bench.peers.driver import Options, config_of, main
from quire.core.outputs import RequestMetrics

_PROMPT_TOKENS = 2048  # in one llama_decode; llama.cpp itself cuts it into steps of 512


class LlamaCpp:
    """A model and a context that holds all sequences; each `generate` starts it anew."""

    def __init__(self, options: Options) -> None:
        path = _file(options)
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.use_mmap = False  # no page of a large model is read within a measured turn
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise SystemExit(f"llama.cpp could not load {path.name}.")
        count = options.max_seqs
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = count * max(256, options.max_len)
        context.n_batch = _PROMPT_TOKENS
        context.n_seq_max = count
        context.n_threads = context.n_threads_batch = options.num_threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise SystemExit("llama.cpp could not make a context.")
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size: int = llama_cpp.llama_vocab_n_tokens(vocab)
        self._batch = llama_cpp.llama_batch_init(max(_PROMPT_TOKENS, count), 0, 1)
        self.name = f"llama-cpp-python {version('llama-cpp-python')}"

    def generate(self, prompts: list[list[int]], output_len: int) -> list[RequestMetrics]:
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, True)
        metrics = [RequestMetrics(arrival_time=time.monotonic()) for _ in prompts]
        tokens = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        last = [0] * len(prompts)
        for start in range(0, len(tokens), _PROMPT_TOKENS):
            part = tokens[start : start + _PROMPT_TOKENS]
            for sequence, token in self._step(part).items():
                last[sequence] = token
                metrics[sequence].first_token_time = time.monotonic()
        for step in range(output_len - 1):
            ahead = [(token, len(prompts[i]) + step, i, True) for i, token in enumerate(last)]
            last = list(self._step(ahead).values())
        now = time.monotonic()
        for request in metrics:
            request.last_token_time = now
        return metrics

    def _step(self, tokens: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        """Compute (token, position, sequence, wanted); the next token of each wanted sequence."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed.")
        wanted_at = [(i, token[2]) for i, token in enumerate(tokens) if token[3]]
        return {sequence: int(self._logits(i).argmax()) for i, sequence in wanted_at}

    def _logits(self, i: int) -> npt.NDArray[np.float32]:
        pointer = llama_cpp.llama_get_logits_ith(self._context, i)
        address = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(address, shape=(self.vocab_size,))


def _file(options: Options) -> Path:
    """Return the GGUF file to load: the one of `--model`, or a preset's, written on first use."""
    if options.model.endswith(".gguf"):
        return Path(options.model)
    from quire.bench.peers.write_gguf import ARCHITECTURES, write

    if Path(options.model).exists() or config_of(options.model)["model_type"] not in ARCHITECTURES:
        raise SystemExit("llama.cpp needs a .gguf file here, or a preset of Qwen3 or OLMoE.")
    path = Path(options.files) / f"{options.model}-{options.quantization or 'none'}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(options.model, options.quantization or "none", path)
    return path


if __name__ == "__main__":
    main(LlamaCpp, prepare=_file)
