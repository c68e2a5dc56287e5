"""`apply_chat_template` gives what Transformers' gives; all else is the tokenizer's own."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast

from quire.text.tokenizers.hf_tokenizer import HFTokenizer
from quire.text.tokenizers.user_tokenizer import UserTokenizer
from tests.unit.text.test_chat import gpt2_with_controls

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if mood %}({{ mood }}){% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ONE = [{"role": "user", "content": "Hi there"}]
TWO = [{"role": "system", "content": "Be brief."}, *ONE]


def test_as_transformers_has_it() -> None:
    own: HFTokenizer = gpt2_with_controls()
    own.chat_templates = {"default": TEMPLATE}
    oracle = PreTrainedTokenizerFast(tokenizer_object=own._backend)
    oracle.chat_template = TEMPLATE
    tokenizer = UserTokenizer(own)
    cases: list[dict[str, Any]] = [{}, {"add_generation_prompt": True}, {"mood": "glad"}]
    for options in cases:
        for conversation in (ONE, TWO, [ONE, TWO]):
            text = oracle.apply_chat_template(conversation, tokenize=False, **options)
            assert tokenizer.apply_chat_template(conversation, tokenize=False, **options) == text
        ids = oracle.apply_chat_template(TWO, return_dict=False, **options)
        assert tokenizer.apply_chat_template(TWO, **options) == ids
    assert tokenizer.decode(tokenizer.encode("Hi")) == "Hi"
    assert tokenizer.vocab_size == own.vocab_size
