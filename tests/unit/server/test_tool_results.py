"""Whether images in results of tools are read, and the notes in place of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import asdict

from quire.frontend.workers.tokenizer_worker import ChatPrompt
from quire.server import tool_results
from quire.server.tool_results import reads_images
from quire.text.chat import chat_to_token_ids
from quire.text.tokenizers.dummy import DummyTokenizer
from tests.unit.engine.echo import VOCAB_SIZE
from tests.unit.server.fake_engine import running

PARTS = "{% for p in m['content'] %}{{ p['text'] or '#' }}{% endfor %}"
ALL = "{% for m in messages %}" + PARTS + "{% endfor %}"


def engine(most: int | None = 1, marker: int | None = ord("#")) -> Any:
    """Return an engine whose model reads images, and which only tokenizes."""

    async def tokenize(prompt: ChatPrompt, add_special_tokens: bool) -> list[int]:
        return chat_to_token_ids(DummyTokenizer(VOCAB_SIZE), **cast(Any, asdict(prompt)))

    images = None if most is None else SimpleNamespace(most=most)
    return SimpleNamespace(
        model_config=SimpleNamespace(
            vision=None if marker is None else SimpleNamespace(marker=marker)
        ),
        resolved=SimpleNamespace(config=SimpleNamespace(images=images)),
        tokenize=tokenize,
    )


@pytest.mark.parametrize(
    ("template", "reads"),
    [
        (ALL, True),
        (ALL.replace(PARTS, "{% if m.role == 'user' %}" + PARTS + "{% endif %}"), False),
        (ALL.replace(PARTS, "{% if m.role == 'tool' %}{{ m.content }}{% else %}" + PARTS
                     + "{% endif %}"), False),
        (ALL.replace(PARTS, PARTS + "{% if m.role == 'tool' %}{{ raise_exception('No tools') }}"
                     "{% endif %}"), False),
        ("{{ messages[-1].content }}", False),
    ],
)  # fmt: skip
async def test_the_template_decides_whether_images_of_tools_are_read(
    template: str, reads: bool
) -> None:
    template = "{# image #}" + template
    assert await reads_images(engine(), template) == reads
    for unable in (engine(most=0), engine(most=None), engine(marker=None)):
        assert not await reads_images(unable, template)


async def test_a_note_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    file = {"type": "file", "file": {"file_id": "f"}}
    turns = [{"role": "user", "content": "a"}, {"role": "tool", "content": [image, file]}]
    async with running(chat_template="{{ messages[-1].content }}") as app:
        monkeypatch.setattr(tool_results, "_accepts_images", lambda engine: True)
        warnings = (await app.chat(messages=turns)).json()["warnings"]
    assert [each["message"].partition(": ")[2] for each in warnings] == [
        "the chat template has no place for it.",
        "this model reads text and images.",
    ]
