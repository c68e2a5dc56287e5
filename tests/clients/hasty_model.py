"""A tiny model in a hurry: it closes strings and objects at once, and then stops."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import save_file

from tests.e2e.tiny_model import EOS, tiny_weights, write_tiny_model

CONTEXT = 32768
TEMPLATE = (
    "{%- if tools %}<tools>{% for tool in tools %}{{ tool.function.name }} {% endfor %}</tools>\n"
    'Answer with <tool_call>\n{"name": …, "arguments": …}\n</tool_call>\n{% endif -%}'
    "{%- for message in messages -%}"
    "{{ message.role }}: "
    "{%- if message.content is string %}{{ message.content }}"
    "{%- else %}{% for part in message.content or [] %}{{ part.text }}{% endfor %}{% endif -%}"
    "{%- for call in message.tool_calls or [] -%}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>"
    "{%- endfor %}\n{% endfor -%}"
    "{%- if add_generation_prompt %}assistant:{% endif -%}"
)
_LIKED = {'"': 40.0, "}": 36.0, "]": 36.0, ",": 20.0, ":": 20.0, "0": 10.0}


def write_hasty_model(folder: Path) -> Path:
    """Write a model whose next token hardly depends on its prompt; see `_LIKED`."""
    write_tiny_model(folder, max_position_embeddings=CONTEXT)
    weights = tiny_weights()
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    embedding[:, 0] = 30.0  # the same for every token: what the head multiplies with it is a bias
    head[:, 0] = 0.0
    for text, liking in _LIKED.items():
        head[ids[text], 0] = liking
    [end] = [token["id"] for token in tokenizer["added_tokens"] if token["content"] == EOS]
    head[end, 0] = 50.0
    save_file(weights, folder / "model.safetensors")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
