"""Texts pooled in every way: `python -m tests.fuzz.pooling`.

A text's vector is, to the bit, that of the text alone in a plain engine: whatever is beside it,
however its prompt is computed, and when it is asked for again.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from quire import LLM, PoolingParams
from quire.core.errors import ConfigError, UnsupportedModelError
from tests.fuzz.asked import draw_tokens, some
from tests.fuzz.combinations import PLAIN
from tests.fuzz.engines import BASE, MODELS, draw_numbers

LONGEST = 128
_ENCODER = {"vocab_size": 300, "max_position_embeddings": 130, "pad_token_id": 0}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", "num_key_value_heads": None},
    "distilbert": {"model_type": "distilbert", "dim": 128, "n_layers": 2, "n_heads": 4}
    | {"hidden_dim": 256},
    "roberta": {"model_type": "roberta"},
    "xlm-roberta": {"model_type": "xlm-roberta"},
    "modernbert": {"model_type": "modernbert", "global_attn_every_n_layers": 2}
    | {"local_attention": 8, "num_hidden_layers": 4},
}
ALONE = PLAIN | {"max_num_batched_tokens": 2 * LONGEST}


def draw_model(random: Random) -> tuple[dict[str, Any], bool]:
    """Return the fields of a config.json, and whether the model looks both ways."""
    if random.random() < 0.5:
        shape = BASE | _ENCODER | random.choice(list(ENCODERS.values()))
        return {name: value for name, value in shape.items() if value is not None}, True
    shape = BASE | random.choice([each for each in MODELS.values() if each])
    whole = random.random() < 0.2 and "sliding_window" not in shape
    return shape | ({"is_causal": False} if whole else {}), whole


def draw_flags(random: Random, *, whole: bool) -> dict[str, Any]:
    """Return flags that change no bit; some models read a text in one step only."""
    seats = random.choice([1, 3, 5, 16])
    chunks = [LONGEST, 200] if whole else [1, 7, 37, 200]
    flags = {"max_num_seqs": seats, "block_size": random.choice([8, 16, 32])}
    flags["max_num_batched_tokens"] = max(seats, random.choice(chunks))
    choices: dict[str, list[Any]] = {
        "enforce_eager": [True], "num_threads": [1, 2],
        "scheduling_policy": ["lpm"], "num_gpu_blocks_override": [20, 40],
        "enable_prefix_caching": [False], "cpu_offload_gb": [0.00015],
    }  # fmt: skip
    flags |= some(random, 0.3, choices)
    if random.random() < 0.1:
        flags |= {"pipeline_parallel_size": 2, "num_threads": 2}
        flags.pop("cpu_offload_gb", None)
    return flags


def vectors(llm: LLM, asked: list[list[int]], params: list[PoolingParams]) -> list[bytes]:
    prompts: Any = [{"prompt_token_ids": ids} for ids in asked]
    return [out.outputs.data.tobytes() for out in llm.encode(prompts, params, use_tqdm=False)]


def case(random: Random) -> str:
    """One model, and texts for it."""
    shape, whole = draw_model(random)
    task = random.choice(["embed", "embed", "classify"])
    numbers: dict[str, Any] = draw_numbers(random, "other")
    numbers |= {"runner": "pooling", "convert": task, "load_format": "dummy"}
    numbers["max_model_len"] = LONGEST
    numbers["pooler_config"] = {"pooling_type": random.choice(["CLS", "MEAN", "LAST"])}
    flags = draw_flags(random, whole=whole)
    stem = draw_tokens(random, 40)
    lengths = [random.choice([1, 2, 17, random.randint(1, LONGEST)]) for _ in range(9)]
    asked = [(random.choice([[], stem]) + draw_tokens(random, n))[:n] for n in lengths]
    asked.append(asked[0])
    choices: dict[str, list[Any]] = {"truncate_prompt_tokens": [1, 20], "truncation_side": ["left"]}
    name = "normalize" if task == "embed" else "use_activation"
    choices[name] = [True, False]
    params = [PoolingParams(**some(random, 0.2, choices)) for _ in asked]
    told = f"{shape}, {numbers}, {flags}, {lengths}, {params}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape | {"num_labels": 3}))
        try:
            with LLM(folder, **numbers | ALONE) as llm:
                pairs = zip(asked, params, strict=True)
                expected = [vectors(llm, [ids], [one])[0] for ids, one in pairs]
            with LLM(folder, **numbers | flags) as llm:
                for time in ("together", "again"):
                    got = vectors(llm, asked, params)
                    wrong = [i for i, vector in enumerate(expected) if got[i] != vector]
                    assert not wrong, f"{time}: texts {wrong} of {told}"
                llm.call("check_integrity")
                assert llm._core.scheduler.kv.pool.num_used == 0, f"blocks are left: {told}"
        except (ConfigError, UnsupportedModelError) as error:
            return f"refused: {error.param}"
        except AssertionError:
            raise
        except BaseException as error:
            error.add_note(told)
            raise
    return "both ways" if whole else "backwards"


if __name__ == "__main__":
    from tests.fuzz.replay import main

    logging.disable(logging.ERROR)
    sys.exit(main("tests.fuzz.pooling", case, 300))
