"""The dashboard in a real browser, before a real server under load.

`pytest tests/e2e/test_dashboard.py --screenshots docs/images` writes the pictures of the docs.
"""

from __future__ import annotations

import base64
import json
import random
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.serving import Server, serving

pytest.importorskip("playwright", reason="playwright comes with the dev extra")

from playwright.sync_api import Page, Route, expect

from tests.e2e.browser import PHONE, chromium, dashboard

# Of an answer the page gets its beginning, and then nothing: a fast model would be done too soon.
STALL_ANSWERS = """() => {
    const real = window.fetch;
    window.fetch = async (path, options) => {
        const response = await real(path, options);
        if (!path.startsWith("/v1/")) return response;
        const { value } = await response.body.getReader().read();
        const body = new ReadableStream({start(out) {
            out.enqueue(value.slice(0, 4000));
            options.signal.addEventListener("abort", () => out.error(options.signal.reason));
        }});
        return new Response(body, {headers: response.headers});
    };
}"""
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
GIVE_IMAGE = """([name, target, base64]) => {
    const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], "dot.png", {type: "image/png"}));
    const given = {bubbles: true, cancelable: true, dataTransfer: data, clipboardData: data};
    const event = name === "paste" ? new ClipboardEvent(name, given) : new DragEvent(name, given);
    document.querySelector(target).dispatchEvent(event);
}"""
TILES = ("Generated", "Running", "Waiting")
TABS = ("overview", "timeline", "kv", "prefixes", "explain", "roofline", "playground")


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def server(browser: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The built-in model; the browser comes first, so that nothing starts where there is none."""
    logs = tmp_path_factory.mktemp("dashboard")
    flags = ("--num-gpu-blocks-override", "384", "--max-num-seqs", "8", "--num-threads", "1")
    flags += ("--max-model-len", "1024")  # a context that few tokens fill
    named = ("--served-model-name", "embedded")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("QUIRE_CACHE_DIR", str(logs))  # nothing measured here before
        with serving(Path("embedded"), *flags, *named, log_folder=logs) as running:
            yield running


@pytest.fixture
def pictures(request: pytest.FixtureRequest) -> Path | None:
    """Where screenshots go; None: nowhere."""
    folder = request.config.getoption("--screenshots")
    return Path(folder) if folder else None


@contextmanager
def load(server: Server, clients: int = 10, pause: float = 0) -> Iterator[None]:
    """So many clients, some of whose prompts begin alike, until the end of the block.

    Args:
        pause: seconds between a client's requests.
    """
    over = threading.Event()

    def ask(seed: int) -> None:
        draw = random.Random(seed)
        beginning = "Once upon a time there was a little dog who liked to play by the river. "
        with httpx.Client(base_url=server.url, timeout=60) as http:
            while not over.wait(pause):
                text = beginning * draw.choice((1, 3, 3, 6)) + "Then " * draw.randint(1, 40)
                fields = {"max_tokens": draw.randint(100, 500), "ignore_eos": True}
                http.post("/v1/completions", json={"prompt": text, "temperature": 1, **fields})

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def counters(server: Server) -> dict[str, float]:
    """The samples of /metrics, by the names that the page gives them."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            extra = [
                f'{k}="{v}"' for k, v in sample.labels.items() if k not in ("model_name", "engine")
            ]
            found[sample.name + (f"{{{','.join(extra)}}}" if extra else "")] = sample.value
    return found


def number(text: str | None) -> float:
    return float(text.replace(",", "").removesuffix(" s"))


def test_every_view_shows_the_load(server: Server, browser: Page, pictures: Path | None) -> None:
    with dashboard(browser, server.url) as shown, ExitStack() as clients:
        page = shown.page
        clients.enter_context(load(server))

        def snap(name: str) -> None:
            if pictures:
                page.wait_for_timeout(300)
                whole = name in ("overview", "explain", "roofline")
                page.screenshot(path=pictures / f"dashboard-{name}.png", full_page=whole)

        expect(page.locator(".link")).to_have_text("live")
        expect(page.locator(".model b")).to_have_text("embedded")
        tile = {name: page.locator(".tile", has_text=name) for name in TILES}
        expect(tile["Generated"]).to_have_text(re.compile(r"^Generated[1-9].* tok/s$"))
        expect(tile["Running"]).to_have_text("Running8 of 8")
        expect(tile["Waiting"]).to_have_text(re.compile(r"^Waiting[12] $"))
        if pictures:
            page.wait_for_timeout(20_000)
        assert "model" in (page.locator(".bar").first.get_attribute("aria-label") or "")
        assert page.locator(".plot canvas").count() == 5
        snap("overview")

        shown.show("timeline")
        page.locator(".lane").nth(9).wait_for()
        page.get_by_label("Show").select_option("3")
        snap("timeline")
        page.locator(".lane").nth(4).click()
        drill = page.locator("dialog")
        expect(drill.locator("tbody tr").first).to_contain_text("arrived")
        assert "First token" in drill.inner_text()
        snap("request")
        page.keyboard.press("Escape")
        expect(drill).to_have_count(0)

        if not pictures:  # a tenth of the load is as good, and leaves the machine to other tests
            clients.close()
            clients.enter_context(load(server, clients=1, pause=0.5))
        shown.show("kv")
        expect(page.locator("[data-kv=owned]")).not_to_have_text("0")
        page.locator(".owner").first.wait_for()
        area = page.locator(".block-map").bounding_box()
        page.mouse.move(area["x"] + 3, area["y"] + 3)
        expect(page.locator(".told")).to_contain_text("Block")
        snap("kv")

        shown.show("prefixes")
        assert page.locator(".node").count() >= 2
        snap("prefixes")

        # The default window of five seconds is for people.
        page.route(
            "**/explain", lambda route: route.continue_(url=f"{server.url}/explain?window=1")
        )
        shown.show("explain")
        page.get_by_role("button", name="Explain", exact=True).click()
        expect(page.locator(".cause")).not_to_be_empty()
        snap("explain")
        shown.show("roofline")
        for _ in range(10):  # on a machine that is busy elsewhere a second may have had no step
            if page.locator(".point").count() >= 5:
                break
            with page.expect_response("**/explain*"):
                page.get_by_role("button", name="Measure again").click()
            page.wait_for_timeout(100)
        assert page.locator(".point").count() >= 5
        expect(page.locator("tbody th").first).to_be_visible()
        snap("roofline")

        page.get_by_role("button", name="Trace").click()
        page.locator("dialog select").select_option("10")
        page.get_by_role("button", name="Start").click()
        page.get_by_role("button", name="Stop now").wait_for()
        # The light load pauses between requests: without a step there is no trace.
        body = {"prompt": "Once", "max_tokens": 2}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).is_success
        page.get_by_role("button", name="Stop now").click()
        expect(page.locator("dialog")).to_contain_text(".json.gz")
        page.keyboard.press("Escape")
    server.wait_until_idle()


def texts(page: Page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def test_every_number_agrees_with_metrics(server: Server, browser: Page) -> None:
    for n in range(3):
        server.complete(prompt="a story that begins alike " * 20, max_tokens=10 + n)
    server.wait_until_idle()
    before = counters(server)
    with dashboard(browser, server.url) as shown:
        page = shown.page
        bar = page.locator(".bar").first
        expect(bar).to_have_attribute("aria-label", re.compile("idle 100 %"))
        page.locator(".counters summary").click()
        expect(page.locator("[data-metric='vllm:num_requests_running']")).to_have_text("0")
        known = counters(server)
        cells = page.locator("[data-metric]")
        assert cells.count() >= 9
        for cell in cells.all():
            name = cell.get_attribute("data-metric") or ""
            assert number(cell.text_content()) == known[name], name
        for part in ("queue", "receive", "schedule", "model", "sample", "update", "tokenize"):
            shown_seconds = number(page.locator(f"[data-part={part}]").text_content())
            name = f'quire:time_seconds_total{{part="{part}"}}'
            # The page asks the core for more than the requests do.
            assert before[name] - 0.001 < shown_seconds < known[name] + 0.001, part
        hits = known["vllm:prefix_cache_hits_total"] / known["vllm:prefix_cache_queries_total"]
        [tile] = [t for t in texts(page, ".tile") if t.startswith("Prefix hits")]
        assert float(tile.split()[2]) == pytest.approx(hits * 100, abs=0.51)
        shown.show("kv")
        free = number(page.locator("[data-kv=free]").text_content())
        cached = number(page.locator("[data-kv=cached]").text_content())
        assert known["vllm:kv_cache_usage_perc"] == 0
        assert free + cached == 384


def test_keys_reach_everything(server: Server, browser: Page) -> None:
    server.complete(prompt="for the timeline")
    with dashboard(browser, server.url) as shown:
        page = shown.page
        expect(page.locator(".tile").first).to_be_visible()
        page.locator("#tab-overview").focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#tab-timeline")).to_have_attribute("aria-selected", "true")
        page.get_by_label("Show").select_option("60")
        page.locator(".lane").first.wait_for()
        page.locator("#tab-timeline").focus()
        for _ in range(3):  # past the window and the button that holds it
            page.keyboard.press("Tab")
        expect(page.locator(".lane").first).to_be_focused()
        lane = page.evaluate("document.activeElement.textContent")
        page.keyboard.press("Enter")
        expect(page.locator("dialog tbody tr").first).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("dialog")).to_have_count(0)
        assert page.evaluate("document.activeElement.textContent") == lane

        page.locator("#tab-timeline").focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Tab")
        expect(page.locator(".block-map")).to_be_focused()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("End")
        expect(page.locator(".told")).to_contain_text("383")


def test_a_phone_scrolls_down_and_not_sideways(
    server: Server, browser: Page, pictures: Path | None
) -> None:
    loaded = load(server) if pictures else nullcontext()
    with loaded, dashboard(browser, server.url, PHONE, "dark") as shown:
        shown.page.locator(".tile").first.wait_for()
        background = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(16, 19, 23)"
        for tab in TABS:
            shown.show(tab)
            assert shown.overflow() <= 0, tab
            if pictures and tab in ("overview", "kv", "timeline"):
                shown.page.wait_for_timeout(6000)
                shown.page.screenshot(path=pictures / f"dashboard-{tab}-phone.png")


def test_the_playground_streams_with_probabilities(
    server: Server, browser: Page, pictures: Path | None
) -> None:
    with dashboard(browser, f"{server.url}/#playground") as shown:
        page = shown.page
        page.get_by_label("Max tokens").fill("60")
        page.get_by_label("Seed").fill("7")
        page.get_by_label("Message", exact=True).fill("Tell me a story about a fox.")
        page.keyboard.press("Enter")
        expect(page.locator(".note")).to_contain_text("tokens")
        answer = page.locator(".turn.assistant .tokens")
        asked = {
            "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
            "max_tokens": 60,
            "seed": 7,
        }
        same = server.http.post("/v1/chat/completions", json=asked).json()
        assert answer.inner_text() == same["choices"][0]["message"]["content"]
        page.locator(".token").nth(6).hover()
        chances = page.locator(".alternatives li")
        assert chances.count() >= 5
        assert any("%" in text for text in chances.all_inner_texts())
        if pictures:
            page.screenshot(path=pictures / "dashboard-playground.png")
        page.get_by_role("button", name="its timeline").click()
        expect(page.locator("dialog tbody tr").last).to_contain_text("ended")
        page.keyboard.press("Escape")

        page.evaluate(STALL_ANSWERS)
        page.get_by_label("Message", exact=True).fill("Another one.")
        page.keyboard.press("Enter")
        page.locator(".turn.assistant").nth(1).wait_for(state="attached")  # perhaps empty
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".note").nth(1)).to_contain_text("stopped")
    server.wait_until_idle()


def test_the_playground_drops_the_oldest_messages(server: Server, browser: Page) -> None:
    context = server.http.get("/v1/models").json()["data"][0]["max_model_len"]
    long = "The dog ran to the big red ball. " * (context // 3 // 9)
    sent: list[list[str]] = []

    def watch(route: Route) -> None:
        messages = route.request.post_data_json["messages"]
        sent.append([message["content"][:9] for message in messages])
        route.continue_()

    with dashboard(browser, f"{server.url}/#playground") as shown:
        page = shown.page
        page.route("**/v1/chat/completions", watch)
        page.get_by_label("Seed").fill("7")
        page.get_by_label("System message").fill("Be kind.")
        for number in range(4):
            limit = "4" if number < 3 else ""  # the last answer may use all that is left
            page.get_by_label("Max tokens").fill(limit)
            page.get_by_label("Message", exact=True).fill(f"{number}: {long}")
            page.keyboard.press("Enter")
            expect(page.locator(".turn .note")).to_have_count(number + 1)
            expect(page.get_by_role("button", name="Send")).to_be_visible()
        questions = [[text[0] for text in each if text[1:2] == ":"] for each in sent]
        assert questions == [["0"], ["0", "1"], ["1", "2"], ["2", "3"]]
        assert [each[0] for each in sent] == ["Be kind."] * 4
        said = page.get_by_text("The context is full: the 4 messages above were left out.")
        assert said.is_visible()
        assert page.locator(".turn.dim").count() == 4
        assert page.locator(".turn").count() == 8
        page.get_by_role("button", name="New").click()
        expect(said).to_have_count(0)


def test_the_playground_sends_images(server: Server, browser: Page, tmp_path: Path) -> None:
    """By file, paste and drop. The built-in model reads text and says so; nothing is lost then."""
    pixel = base64.b64decode(PIXEL)
    (tmp_path / "dot.png").write_bytes(pixel)
    sent: list[Any] = []

    def watch(route: Route) -> None:
        sent.append(route.request.post_data_json)
        route.continue_()

    with dashboard(browser, f"{server.url}/#playground") as shown:
        page = shown.page
        page.route("**/tokenize", watch)
        page.locator("input[type=file]").set_input_files(tmp_path / "dot.png")
        images = page.locator(".ask .images img")
        expect(images).to_have_count(1)
        for name, target in (("paste", ".ask textarea"), ("drop", ".talk")):
            page.evaluate(GIVE_IMAGE, [name, target, PIXEL])
        expect(images).to_have_count(3)
        assert images.evaluate_all("all => all.every(i => i.naturalWidth === 1)")
        page.get_by_role("button", name="Remove image 2").click()
        expect(images).to_have_count(2)
        page.get_by_label("Message", exact=True).fill("What is this?")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("This model reads text")
        expect(images).to_have_count(2)  # to be tried again
        assert not shown.violations()
        # Chromium tells of each failed request by itself.
        shown.complaints.clear()
    url = f"data:image/png;base64,{PIXEL}"
    image = {"type": "image_url", "image_url": {"url": url}}
    text = {"type": "text", "text": "What is this?"}
    assert [body["messages"][0]["content"] for body in sent] == [[image, image, text]]


def test_the_playground_tells_reasoning_apart_and_asks_adapters(
    server: Server, browser: Page
) -> None:
    """The built-in model does not reason and has no adapter: the answers are the test's."""
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "Let me "},
              {"reasoning_content": "think."}, {"content": "A fox."}]  # fmt: skip
    chunks: list[dict[str, Any]] = [
        {"choices": [{"delta": delta, "finish_reason": None, "logprobs": None}]} for delta in deltas
    ]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    chunks.append({"choices": [], "usage": {"completion_tokens": 9}})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    asked: list[Any] = []

    def answer(route: Route) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(body=body, content_type="text/event-stream")

    with dashboard(browser, f"{server.url}/#playground") as shown:
        page = shown.page
        page.route("**/v1/chat/completions", answer)
        names = {"data": [{"id": "embedded"}, {"id": "fables"}]}
        page.route("**/v1/models", lambda route: route.fulfill(json=names))
        page.get_by_role("tab", name="Overview").click()
        page.get_by_role("tab", name="Playground").click()
        page.locator(".settings select").select_option("fables")
        for turn in range(2):
            page.get_by_label("Message", exact=True).fill("Who?")
            page.keyboard.press("Enter")
            expect(page.locator(".note").nth(turn)).to_contain_text("9 tokens")
        thought = page.locator(".reasoning").first
        assert not thought.locator("p").is_visible()
        thought.locator("summary").click()
        expect(thought.locator("p")).to_have_text("Let me think.")
        expect(page.locator(".turn.assistant > .tokens").first).to_have_text("A fox.")
    assert [body["model"] for body in asked] == ["fables", "fables"]
    assert [message["content"] for message in asked[1]["messages"]] == ["Who?", "A fox.", "Who?"]


def test_a_key_is_asked_for_and_a_lost_server_found_again(server: Server, browser: Page) -> None:
    """The server has no key here and stays up: what its answers would be comes from the test."""
    refused: dict[str, Any] = {"status": 401, "json": {"error": {"message": "The key is wrong."}}}
    with dashboard(browser, server.url) as shown:
        page = shown.page
        page.route(
            "**/dashboard/stream",
            lambda route: (
                route.continue_()
                if route.request.headers.get("authorization") == "Bearer secret"
                else route.fulfill(**refused)
            ),
        )
        page.reload()
        expect(page.locator("dialog input")).to_be_visible()
        page.locator("dialog input").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("does not know")
        page.locator("dialog input").fill("secret")
        page.keyboard.press("Enter")
        expect(page.locator(".link")).to_have_text("live")
        page.unroute_all(behavior="ignoreErrors")

        page.route("**/dashboard/stream", lambda route: route.abort())
        page.reload()
        expect(page.locator(".link")).to_contain_text("disconnected")
        expect(page.locator(".empty")).to_contain_text("cannot be reached")
        page.unroute_all(behavior="ignoreErrors")
        expect(page.locator(".link")).to_have_text("live")
        # Chromium tells of each failed request by itself.
        shown.complaints[:] = [c for c in shown.complaints if "Failed to load resource" not in c]
