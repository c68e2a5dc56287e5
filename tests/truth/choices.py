"""Random config.json files: for each architecture a table of what each key may be.

`ABSENT` leaves a key out. Most values are ones that Transformers computes; a few are mistakes, or
two statements that contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.truth.dense import DENSE
from tests.truth.experts import EXPERTS_OR_LATENT
from tests.truth.keys import (
    ABSENT,
    FULL,
    HEAD,
    SLIDES,
    SLIDING,
    THETAS,
    TRAINED,
    VOCAB_SIZE,
    Architecture,
    Config,
)
from tests.truth.learned_positions import LEARNED_POSITIONS
from tests.truth.recurrent import RECURRENT

_SCALINGS = {
    "phi3": "longrope", "ministral3": "yarn", "mistral4": "yarn",
    "hunyuan_v1_dense": "dynamic", "hunyuan_v1_moe": "dynamic",
}  # fmt: skip
"""Scalings that a model type has in a way of its own."""
_HALVES = ("glm", "glm4", "glm4_moe", "nemotron", "phi")
"""Model types that rotate a half of each head."""
_HEAD_DIMS = {
    "gpt_oss": 64,
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "gemma4_text", "vaultgemma"), 256),
} | dict.fromkeys(
    (
        "qwen3", "seed_oss", "glm", "glm4", "ernie4_5", "internlm3", "ministral3", "llama4_text",
        "cwm", "minimax_m2", "solar_open", "afmoe", "mellum", "hy_v3", "lfm3", "helium",
    ),
    128,
)  # fmt: skip
"""Heads' widths where the config does not say, and they are not hidden_size / heads."""
ARCHITECTURES: dict[str, Architecture] = DENSE | EXPERTS_OR_LATENT | LEARNED_POSITIONS | RECURRENT


@dataclass(frozen=True)
class Case:
    """One config.json, and what to compute with it."""

    kind: str
    task: str
    config: Config
    dtype: str
    weights_seed: int


def draw(seed: int, index: int) -> Case:
    """The `index`-th case of a seed."""
    rng = Random(f"{seed}.{index}")
    kind = list(ARCHITECTURES)[index % len(ARCHITECTURES)]
    made = ARCHITECTURES[kind]
    task = rng.choice(made.tasks)
    config: Config = {"model_type": kind, "architectures": [_class(made.stem, task)]}
    config |= _shape(rng, made)
    for key, values in made.keys.items():
        config[key] = rng.choice(values)
    if task == "classify":
        config |= {key: rng.choice(values) for key, values in HEAD.items()}
    layers = config[made.sizes.get("num_hidden_layers", "num_hidden_layers")]
    if config.get("layer_types") == "types":
        config["layer_types"] = [rng.choice((FULL, SLIDING)) for _ in range(layers)]
        if rng.random() < 0.8:  # else some have no window, and are refused
            config |= {k: v for k, v in SLIDES.items() if k in made.keys}
    if config.get("layer_types") == "full":
        config["layer_types"] = [FULL] * layers
    if config.get("head_dim") == "inner":  # of heads that together are `expand` times as wide
        expand = 2 if config["expand"] is ABSENT else config["expand"]
        config["head_dim"] = expand * config["hidden_size"] // config["num_heads"]
    for key in [key for key, value in config.items() if value == "mixed"]:
        config[key] = [rng.choice(made.mixers) for _ in range(layers)]
    if made.rope:
        config |= _rope(rng, kind, config)
    if rng.random() < 0.02:
        del config[rng.choice(sorted(config.keys() - {"model_type", "architectures"}))]
    flags = [key for key, value in config.items() if isinstance(value, bool)]
    if flags and rng.random() < 0.05:  # null is false, not the default
        config[rng.choice(flags)] = None
    config = {key: value for key, value in config.items() if value is not ABSENT}
    dtype = rng.choice(("float32", "float32", "float32", "bfloat16"))
    return Case(kind, task, config, dtype, rng.randrange(1 << 30))


def _class(stem: str, task: str) -> str:
    if task == "classify":
        return f"{stem}ForSequenceClassification"
    if task == "embed":
        return f"{stem}Model"
    named = {f"{name}Text": f"{name}ForCausalLM" for name in ("Gemma3", "Gemma4", "Llama4")}
    return ({"GPT2": "GPT2LMHeadModel"} | named).get(stem, f"{stem}ForCausalLM")


def _shape(rng: Random, made: Architecture) -> Config:
    """Sizes: grouped heads of many widths, odd ones and ones that do not fit included."""
    heads = rng.choice((1, 2, 4, 6, 8, 16, 32))
    width = rng.choice((8, 12, 16, 20, 24, 32, 40, 64, 6, 4, 2, 15) if heads < 8 else (4, 8, 10))
    shape: Config = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": heads * width,
        "intermediate_size": rng.choice((32, 72, 100)),
        "num_hidden_layers": rng.choice((1, 2, 3)),
        "num_attention_heads": heads,
    }
    if made.heads:
        divisors = [n for n in (1, 2, 3, 4, 6, 8, 16) if heads % n == 0]
        rare = (ABSENT, None) if rng.random() < 0.15 or heads > 8 else ()
        shape["num_key_value_heads"] = rng.choice((*divisors, *rare))
        width = ABSENT if width % 2 else width
        wide = (128, 7) if heads < 8 else ()
        shape["head_dim"] = rng.choice((ABSENT, ABSENT, width, width, 8, 10, 16, 24, 64, *wide))
    return {made.sizes.get(key, key): value for key, value in shape.items()}


def _rope(rng: Random, kind: str, config: Config) -> Config:
    """RoPE's fields in a random spelling."""
    head_dim = config.get("head_dim", ABSENT)
    if head_dim in (ABSENT, None):
        usual = config.get("hidden_size", 64) // config.get("num_attention_heads", 4)
        head_dim = _HEAD_DIMS.get(kind, usual)
    usual_part = {"stablelm": 0.25, **dict.fromkeys(_HALVES, 0.5)}.get(kind, 1.0)
    rotates_parts = kind in ("phi3", "stablelm", "minimax_m2", *_HALVES)
    partial = rng.choice((0.5, 1.0)) if rotates_parts and rng.random() < 0.4 else ABSENT
    rotary = int(head_dim * (usual_part if partial is ABSENT else partial))
    table, top = scaling(rng, rotary, _SCALINGS.get(kind, ""))
    fields = _nested(rng, kind, table) if ARCHITECTURES[kind].rope == "nested" else {}
    if not fields:
        fields = _spelled(rng, table) | top
        if partial is not ABSENT:
            inside = rng.random() < 0.5 and isinstance(fields.get("rope_parameters"), dict)
            (fields["rope_parameters"] if inside else fields)["partial_rotary_factor"] = partial
    return fields


def scaling(rng: Random, rotary: int, only: str = "") -> tuple[Config, Config]:
    """A scaling's table, and what of it stands at the top level."""
    kinds = ("default", "default", "linear", "dynamic", "llama3", "yarn", "yarn", "longrope")
    if only:  # of Phi-3 others are refused
        kinds = ("default", "default", only, only, only, only, only, "yarn")
    kind = rng.choice(kinds)
    table: Config = {"rope_type": kind}
    top: Config = {}
    if kind != "default":
        table["factor"] = rng.choice((2.0, 4, 8.0, 1.0, 40.0))
    if kind == "llama3":
        table |= {
            "low_freq_factor": rng.choice((1.0, 1)),
            "high_freq_factor": rng.choice((4.0, 2, 1)),
        }
    if kind == "yarn":
        extras: Config = {
            "beta_fast": (32, 8.0, 0, None), "beta_slow": (1, 2.0), "mscale": (1.0, 0.7),
            "mscale_all_dim": (1.0, 0.4), "attention_factor": (1.3, 1, None),
            "truncate": (True, False),
        }  # fmt: skip
        for name, values in extras.items():
            if rng.random() < 0.3:
                table[name] = rng.choice(values)
        if rng.random() < 0.1:
            table["factor"] = None
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            table[name] = [round(rng.uniform(1, 6), 2) for _ in range(rotary // 2)]
        if rng.random() < 0.5:
            table.pop("factor")
        if rng.random() < 0.3:
            table["attention_factor"] = rng.choice((1.2, 1.0))
    if only == "yarn":
        table["llama_4_scaling_beta"] = rng.choice((0.1, 0.5))
    if only == "dynamic" and rng.random() < 0.7:
        table["alpha"] = rng.choice((1000.0, 2))
    if kind in ("llama3", "yarn", "longrope"):
        # Of longrope a prompt is always longer than the first, and never than the second.
        trained = (16, 1024) if kind == "longrope" else (16, 32, 64)
        places = rng.choice(("table", "top", "both", "differ", ""))
        if places in ("table", "both", "differ"):
            table[TRAINED] = rng.choice(trained)
        if places in ("top", "both"):
            top[TRAINED] = table.get(TRAINED, rng.choice(trained))
        if places == "differ":
            top[TRAINED] = rng.choice(trained)
    if rng.random() < 0.03 and len(table) > 1:
        name = rng.choice(sorted(table.keys() - {"rope_type"}))
        table[name] = rng.choice(("4", 0, -1.0, [1.0], True))
    if rng.random() < 0.04:
        table["unheard_of"] = 1
    return table, top


def _spelled(rng: Random, table: Config) -> Config:
    """One table for all layers, in Transformers 4's words, in 5's, or in both."""
    theta = rng.choice(THETAS)
    plain = table["rope_type"] == "default"
    older = dict(table)
    if rng.random() < 0.4:
        older["type"] = older.pop("rope_type")
    elif rng.random() < 0.05:
        older["type"] = rng.choice(("linear", table["rope_type"]))
    newer = table | {"rope_theta": theta}
    match rng.choice(("4", "4", "5", "5", "5 and a theta", "both", "mixed", "mixed", "none")):
        case "4":
            fields: Config = {"rope_theta": rng.choice((theta, ABSENT))}
            return fields | {"rope_scaling": None if plain and rng.random() < 0.7 else older}
        case "5":
            return {"rope_parameters": newer}
        case "5 and a theta":
            return {"rope_parameters": table, "rope_theta": theta}
        case "both":
            return {"rope_parameters": newer, "rope_theta": rng.choice((theta, 3e4)),
                    "rope_scaling": rng.choice((older, None))}  # fmt: skip
        case "mixed":
            base = {"rope_type": "default", "rope_theta": rng.choice((10000.0, theta))}
            return {"rope_parameters": base, "rope_scaling": older,
                    "rope_theta": rng.choice((ABSENT, base["rope_theta"], theta))}  # fmt: skip
    return {"rope_theta": rng.choice((theta, theta, ABSENT)), "rope_parameters": None}


def _nested(rng: Random, kind: str, table: Config) -> Config:
    """A table for each kind of layers, or the older names; empty for a flat one, a mistake."""
    names = {"gemma3_text": ("rope_theta", "rope_local_base_freq"), "olmo3": ("rope_theta",)}
    names_of_kind = names.get(kind, ("global_rope_theta", "local_rope_theta"))
    thetas = {name: rng.choice((*THETAS, ABSENT)) for name in names_of_kind}
    match rng.choice(("4", "4", "5", "5", "both", "flat")):
        case "4":
            older = dict(table)
            if rng.random() < 0.2:
                older["type"] = older.pop("rope_type")
            return thetas | {"rope_scaling": rng.choice((older, older, None))}
        case "5":
            tables = {
                FULL: table | {"rope_theta": rng.choice(THETAS)},
                SLIDING: {"rope_type": "default", "rope_theta": rng.choice(THETAS)},
            }
            if rng.random() < 0.2:
                tables.pop(rng.choice((FULL, SLIDING)))
            return {"rope_parameters": tables}
        case "both":
            tables = {FULL: {"rope_type": "default"}, SLIDING: {"rope_type": "default"}}
            return thetas | {"rope_parameters": tables, "rope_scaling": rng.choice((table, None))}
    return {}
