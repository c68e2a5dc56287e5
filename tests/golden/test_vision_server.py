"""Images in each API of a served model: the same answer, and refusals that say why."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from PIL import Image

from tests.e2e.serving import Server, serving
from tests.golden.tiny_vision import IMAGE, write_vision_model

SEEN = {"type": "text", "text": "See "}


def data_url(seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 41, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("vision")
    write_vision_model(folder, "qwen2_vl")
    flags = ("--num-gpu-blocks-override", "64", "--limit-mm-per-prompt", '{"image": 2}')
    flags += ("--enable-prompt-embeds",)
    with serving(folder, *flags) as running:
        yield running


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=120)


def chat(server: Server, *parts: dict[str, Any]) -> httpx.Response:
    content = [{"type": "text", "text": "See "}, *parts]
    messages = [{"role": "user", "content": content}]
    fields = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
    return post(server, "/v1/chat/completions", model=server.model, messages=messages, **fields)


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "high"}}


def metrics_of(server: Server) -> str:
    return httpx.get(f"{server.url}/metrics").text


def test_all_apis_give_the_same_answer(server: Server) -> None:
    assert server.metric("encoded_image_tokens_total", "quire") == 0
    url = data_url(1)
    first = chat(server, image(url)).json()
    answer = first["choices"][0]["message"]["content"]
    assert first["usage"]["prompt_tokens"] > 32, "the image has rows"
    again = chat(server, image(url)).json()
    assert again["choices"][0]["message"]["content"] == answer
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
    rows = server.metric("encoded_image_tokens_total", "quire")
    assert rows == 20, "the second time no image is read"
    times = dict(re.findall(r'time_seconds_total{.*part="(\w+)".*} (\S+)', metrics_of(server)))
    assert float(times["images"]) > 0.0 < float(times["encode"])
    for answered, stages in ((first, {"images", "encode"}), (again, {"images"})):
        lane = httpx.get(f"{server.url}/dashboard/requests/{answered['id']}").json()
        found = {kind: end - start for kind, start, end, _ in lane["spans"]}
        assert found.keys() & {"images", "encode"} == stages
        assert all(found[stage] > 0 for stage in stages)
    other = chat(server, image(data_url(2))).json()
    assert other["choices"][0]["message"]["content"] != answer
    parts = [{"type": "input_text", "text": "See "}, {"type": "input_image", "image_url": url}]
    same = {"model": server.model, "temperature": 0.0}
    response = post(
        server, "/v1/responses", input=[{"role": "user", "content": parts}],
        max_output_tokens=12, ignore_eos=True, **same,
    ).json()  # fmt: skip
    assert response["output"][0]["content"][0]["text"] == answer
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    blocks = [{"type": "text", "text": "See "}, {"type": "image", "source": source}]
    message = post(
        server, "/v1/messages", messages=[{"role": "user", "content": blocks}],
        max_tokens=12, **same,
    ).json()  # fmt: skip
    assert message["content"][0]["text"] == answer


def test_messages_of_each_role_may_have_images(server: Server) -> None:
    url, text = data_url(10), {"type": "text", "text": "See "}
    fields: dict[str, Any] = {"model": server.model, "temperature": 0.0}
    for role in ("system", "developer", "assistant"):
        turns = [{"role": role, "content": [text, image(url)]}, {"role": "user", "content": "Go"}]
        found = post(server, "/v1/chat/completions", messages=turns, max_tokens=4, **fields)
        choice = found.json()["choices"][0]["message"]["content"]
        parts = [{"type": "input_text", "text": "See "}, {"type": "input_image", "image_url": url}]
        turns = [{"role": role, "content": parts}, {"role": "user", "content": "Go"}]
        response = post(server, "/v1/responses", input=turns, max_output_tokens=4, **fields).json()
        assert response["output"][0]["content"][0]["text"] == choice
        assert response["usage"]["input_tokens"] == found.json()["usage"]["prompt_tokens"] > 20
    source = {"type": "url", "url": url}
    turns = [{"role": "assistant", "content": [text, {"type": "image", "source": source}]}]
    turns = [{"role": "user", "content": "Hi"}, *turns, {"role": "user", "content": "Go"}]
    message = post(server, "/v1/messages", messages=turns, max_tokens=4, **fields).json()
    assert message["usage"]["input_tokens"] > 20


def test_results_of_tools_may_have_images(server: Server) -> None:
    """Each API's prompt is that of the same parts in a chat; the marker stands in their place."""
    url, fields = data_url(11), {"model": server.model, "temperature": 0.0}
    called = {"name": "look", "arguments": "{}"}
    call = {"id": "c", "type": "function", "function": called}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [SEEN, image(url)]},
        {"role": "user", "content": "Go"},
    ]
    asked = {"max_tokens": 4, "messages": turns, **fields}
    found = post(server, "/v1/chat/completions", ignore_eos=True, **asked).json()
    assert [each["param"].rpartition(".")[2] for each in found["warnings"]] == ["detail"]
    text = post(server, "/tokenize", messages=turns).json()["tokens"]
    shown = post(server, "/detokenize", tokens=text).json()["prompt"]
    assert shown.replace("<image>" * 20, "<image>") == (
        "user: Lookassistant: tool: See <image>user: Goassistant:"
    )
    answer, count = found["choices"][0]["message"]["content"], found["usage"]["prompt_tokens"]
    parts = [{"type": "input_text", "text": "See "}, {"type": "input_image", "image_url": url}]
    items = [
        turns[0],
        {"type": "function_call", "call_id": "c", **called},
        {"type": "function_call_output", "call_id": "c", "output": parts},
        turns[3],
    ]
    response = post(
        server, "/v1/responses", input=items, max_output_tokens=4, ignore_eos=True, **fields
    ).json()
    assert response["output"][0]["content"][0]["text"] == answer
    assert response["usage"]["input_tokens"] == count == len(text)
    blocks = [SEEN, {"type": "image", "source": {"type": "url", "url": url}}]
    result = {"type": "tool_result", "tool_use_id": "c", "content": blocks}
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    asked["messages"] = [
        turns[0],
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, {"type": "text", "text": "Go"}]},
    ]
    message = post(server, "/v1/messages", **asked).json()
    used = message["usage"]
    assert used["input_tokens"] + used["cache_read_input_tokens"] == count, used
    assert used["cache_read_input_tokens"] > 20, "the image is the same"
    turns[2]["content"].append({"type": "file", "file": {"file_id": "f"}})
    noted = post(server, "/v1/chat/completions", **asked | {"messages": turns}).json()
    assert "this model reads text and images" in str(noted["warnings"])


def test_prompts_that_lack_their_image_are_refused(server: Server) -> None:
    for prompt in ("See <image>", [5, IMAGE]):
        refused = post(server, "/v1/completions", model=server.model, prompt=prompt)
        assert refused.status_code == 400
        assert f"token {IMAGE}, which stands for an image" in refused.json()["error"]["message"]
        assert refused.json()["error"]["param"] == "prompt"
    messages = [{"role": "user", "content": [image(data_url(12))]}]
    fields = {"messages": messages, "use_beam_search": True, "n": 2, "max_tokens": 2}
    refused = post(server, "/v1/chat/completions", model=server.model, **fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "use_beam_search")


def test_client_packages_send_images_unchanged(server: Server) -> None:
    """OpenAI's and Anthropic's; see `test_langchain_and_litellm_send_images` for others."""
    from anthropic import Anthropic  # takes a second to import

    url, api = data_url(4), openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = chat(server, image(url)).json()["choices"][0]["message"]["content"]
    fixed: dict[str, Any] = {"model": server.model, "temperature": 0.0}
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "See "}, image(url)]}]
    more = {"extra_body": {"ignore_eos": True}}
    whole = api.chat.completions.create(messages=messages, max_tokens=12, **fixed, **more)
    assert whole.choices[0].message.content == answer
    chunks = api.chat.completions.create(
        messages=messages, max_tokens=12, stream=True, **fixed, **more
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer
    parts: Any = [{"type": "input_text", "text": "See "}, {"type": "input_image", "image_url": url}]
    response = api.responses.create(
        input=[{"role": "user", "content": parts}], max_output_tokens=12, **fixed, **more
    )
    assert response.output_text == answer
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    blocks: Any = [{"type": "text", "text": "See "}, {"type": "image", "source": source}]
    message = Anthropic(base_url=server.url, api_key="none").messages.create(
        model=server.model, max_tokens=12, messages=[{"role": "user", "content": blocks}],
        extra_body={"temperature": 0.0},
    )  # fmt: skip
    assert message.content[0].type == "text"
    until_eos = api.chat.completions.create(messages=messages, max_tokens=12, **fixed)
    assert message.content[0].text == until_eos.choices[0].message.content


LANGCHAIN = """
import sys
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
server, model, url = sys.argv[1:]
fixed = {"model": model, "base_url": f"{server}/v1", "api_key": "none", "temperature": 0.0}
for kind in ({}, {"use_responses_api": True}):
    ask = ChatOpenAI(max_tokens=12, extra_body={"ignore_eos": True}, **fixed, **kind)
    for image in (
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "base64": url.partition(",")[2], "mime_type": "image/png"},
    ):
        message = HumanMessage(content=[{"type": "text", "text": "See "}, image])
        print(ask.invoke([message]).text)
"""
LITELLM = """
import os, sys
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
server, model, url = sys.argv[1:]
image = {"type": "image_url", "image_url": {"url": url}}
messages = [{"role": "user", "content": [{"type": "text", "text": "See "}, image]}]
fixed = {"api_base": f"{server}/v1", "api_key": "none", "temperature": 0.0, "max_tokens": 12}
done = litellm.completion(model=f"openai/{model}", messages=messages, ignore_eos=True, **fixed)
print(done.choices[0].message.content)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("script", "times"), [(LANGCHAIN, 4), (LITELLM, 1)])
def test_langchain_and_litellm_send_images(server: Server, script: str, times: int) -> None:
    url = data_url(5)
    answer = chat(server, image(url)).json()["choices"][0]["message"]["content"]
    command = [sys.executable, "-W", "ignore", "-c", script, server.url, server.model, url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{answer}\n" * times


def test_text_does_not_wait_for_a_slow_image(server: Server) -> None:
    """Nor does another image. A slow one is answered when its process goes on."""
    assert chat(server, image(data_url(6))).status_code == 200
    for process in _image_processes(server):
        os.kill(process, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(2) as threads:
            asked = [threads.submit(chat, server, image(data_url(seed))) for seed in (7, 8)]
            done, slow = wait(asked, return_when=FIRST_COMPLETED)
            assert chat(server).status_code == 200
            assert len(slow) == 1
            for process in _image_processes(server):
                os.kill(process, signal.SIGCONT)
            assert [each.result().status_code for each in (*done, *slow)] == [200, 200]
    finally:
        for process in _image_processes(server):
            os.kill(process, signal.SIGKILL)
    assert chat(server, image(data_url(9))).status_code == 200


def _image_processes(server: Server) -> list[int]:
    """Return the ids of the server's processes that decode images."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if (
                parent == server.process.pid
                and b"images.worker" in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
    return found


def test_tokens_are_counted(server: Server) -> None:
    """`/tokenize`, `count_tokens` and `input_tokens` count the rows of an image."""
    url = data_url(3)
    parts = [{"type": "text", "text": "See "}, image(url)]
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    found = post(server, "/tokenize", messages=messages).json()
    assert found["tokens"].count(IMAGE) == 20
    asked = post(server, "/v1/chat/completions", messages=messages, max_tokens=1).json()
    assert asked["usage"]["prompt_tokens"] == found["count"] == len(found["tokens"])
    source = {"type": "url", "url": url}
    blocks = [{"type": "text", "text": "See "}, {"type": "image", "source": source}]
    messages = [{"role": "user", "content": blocks}]
    counted = post(server, "/v1/messages/count_tokens", model=server.model, messages=messages)
    assert counted.json()["input_tokens"] == found["count"]
    parts = [{"type": "input_text", "text": "See "}, {"type": "input_image", "image_url": url}]
    messages = [{"role": "user", "content": parts}]
    counted = post(server, "/v1/responses/input_tokens", model=server.model, input=messages)
    assert counted.json()["input_tokens"] == found["count"]
    parts[1]["image_url"] = "data:image/png;base64,QUJD"
    refused = post(server, "/v1/responses/input_tokens", model=server.model, input=messages)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "input"


def test_an_image_may_be_sent_as_its_rows(server: Server) -> None:
    """As base64 of tensors that torch saved; zeros are as good as other rows here."""

    def saved(tensor: torch.Tensor) -> str:
        out = io.BytesIO()
        torch.save(tensor, out)
        return base64.b64encode(out.getvalue()).decode()

    def part(rows: int, width: int = 64) -> dict[str, Any]:
        grid = saved(torch.tensor([1, 4, 6]))
        embeds = {"image_embeds": saved(torch.zeros(rows, width)), "image_grid_thw": grid}
        return {"type": "image_embeds", "image_embeds": embeds, "uuid": "a"}

    counted = post(server, "/tokenize", messages=[{"role": "user", "content": [part(6)]}])
    assert counted.json()["tokens"].count(IMAGE) == 6
    assert chat(server, part(6)).status_code == 200
    for wrong, why in ((part(7), "7 rows"), (part(6, 32), "shape [6, 32]")):
        refused = chat(server, wrong)
        assert refused.status_code == 400
        assert why in refused.json()["error"]["message"]
    refused = chat(server, {"type": "image_embeds", "image_embeds": saved(torch.zeros(6, 64))})
    assert "needs image_grid_thw" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("urls", "why"),
    [
        (["https://169.254.169.254/latest/meta-data"], "--allowed-media-domains"),
        (["file:///etc/passwd"], "--allowed-local-media-path"),
        (["data:image/png;base64,QUJD"], "no image"),
        (["data:image/png;base64,?"], "no base64"),
        ([data_url(1)] * 3, "--limit-mm-per-prompt"),
    ],
)
def test_refusals_say_why(server: Server, urls: list[str], why: str) -> None:
    response = chat(server, *map(image, urls))
    assert response.status_code == 400
    assert why in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "messages"
