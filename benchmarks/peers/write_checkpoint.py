"""Write a preset of Quire as a folder of random weights, for starts with weights on disk.

    python benchmarks/peers/write_checkpoint.py qwen3-0.6b FOLDER

Runs in the environment of Transformers; every engine here but llama.cpp reads the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers
from peer import config_of

preset, folder = sys.argv[1], Path(sys.argv[2])
config = config_of(preset)
torch.manual_seed(0)
model = transformers.AutoModelForCausalLM.from_config(
    transformers.AutoConfig.for_model(**config), dtype=torch.bfloat16
)
model.save_pretrained(folder)
(folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")  # as the model's own
