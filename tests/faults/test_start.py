"""Rows 46 and 50, TLS and CORS: what a server needs to start, and what it then allows."""

from __future__ import annotations

import re
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.core.errors import CheckpointError, OutOfMemoryError
from quire.core.sampling_params import SamplingParams
from quire.frontend.llm import LLM
from tests.e2e.serving import serving
from tests.faults.test_command_line import refused
from tests.unit.server.fake_engine import running


@pytest.mark.parametrize(
    ("flags", "rows"),
    [
        ({"kv_cache_memory_bytes": 4096}, ["for the KV cache  --kv-cache-memory-bytes"]),
        (
            {"gpu_memory_utilization": 1e-5},
            ["budget --gpu-memory-utilization", "- weights", "= for the KV cache"],
        ),
    ],
    ids=["KV cache", "host"],
)
def test_row_46_too_little_memory(tiny_model: Path, flags: dict[str, Any], rows: list[str]) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        LLM(str(tiny_model), **flags)
    table = str(caught.value).splitlines()[1:-1]
    said = [" ".join(re.sub(r"-?[\d.,]+ MiB", "", line).split()) for line in table]
    assert [row for row in rows if " ".join(row.split()) not in said] == []
    assert said[-1] == "one sequence needs --max-model-len 512"
    assert "raise --" in str(caught.value.fix)
    with LLM(str(tiny_model), num_gpu_blocks_override=64) as llm:  # nothing is left in the way
        assert llm.generate("a", SamplingParams(max_tokens=2, ignore_eos=True))


def test_row_50_a_pickled_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    for file in tiny_model.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(CheckpointError, match="pickle"):
        LLM(str(tmp_path))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of this machine's name and its key, which sign themselves."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return cert, key


SECRET, PROMPT = "key-0123456789", "a prompt nobody else may read"


def test_tls_and_a_log_without_keys_and_prompts(
    tiny_model: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = map(str, certificate)
    flags = ("--ssl-certfile", cert, "--ssl-keyfile", key, "--ssl-ca-certs", cert)
    others = ("--num-gpu-blocks-override", "64", "--api-key", SECRET, "--ssl-cert-reqs", "2")
    context = ssl.create_default_context(cafile=cert)
    with serving(tiny_model, *others, *flags) as server:
        assert server.url.startswith("https://")
        with pytest.raises(httpx.TransportError):  # it asks for a certificate of ours
            httpx.get(f"{server.url}/health", verify=context)
        context.load_cert_chain(cert, key)
        headers = {"authorization": f"Bearer {SECRET}"}
        with httpx.Client(base_url=server.url, verify=context, headers=headers) as http:

            def complete(**fields: object) -> httpx.Response:
                return http.post("/v1/completions", json={"prompt": PROMPT, **fields})

            answer = complete(max_tokens=8, stream=True, ignore_eos=True)
            assert answer.text.endswith("data: [DONE]\n\n")
            assert complete(temperature=-1).status_code == 400
            assert complete(prompt=PROMPT * 100).status_code == 400
            http.post("/v1/completions", content=f'{{"prompt": "{PROMPT}')
            http.get(f"/{PROMPT}", headers={"authorization": f"Bearer {SECRET}x"})
        assert server.stop() == 0
        log = server.log.read_text()
    assert SECRET not in log
    assert PROMPT not in log


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ssl-keyfile", "x.pem"], "--ssl-certfile"),
        (["--ssl-certfile", "x.pem", "--ssl-cert-reqs", "2"], "--ssl-ca-certs"),
        (["--allowed-origins", "[https://x]"], "JSON"),
        (["--allowed-origins", '["*"]', "--allow-credentials"], "--allow-credentials"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout"),
        (["--step-timeout", "-1"], "step_timeout"),
    ],
)
def test_flags_that_cannot_be(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "serve", *flags)


ORIGIN = "https://example.org"
PREFLIGHT = {"origin": ORIGIN, "access-control-request-method": "POST"}


async def test_no_other_origin_is_allowed_by_default() -> None:
    async with running() as app:
        answer = await app.http.options("/v1/completions", headers=PREFLIGHT)
        assert answer.status_code == 405
        answer = await app.http.get("/v1/models", headers={"origin": ORIGIN})
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_origins_that_are_allowed() -> None:
    from quire.server.options import Cors

    async with running(api_keys=["secret"], cors=Cors((ORIGIN,))) as app:
        answer = await app.http.options("/v1/completions", headers=PREFLIGHT)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        other = await app.http.options(
            "/v1/completions", headers={**PREFLIGHT, "origin": "https://evil.example"}
        )
        assert other.status_code == 400
        assert "access-control-allow-origin" not in other.headers
        assert (await app.http.get("/v1/models", headers={"origin": ORIGIN})).status_code == 401
