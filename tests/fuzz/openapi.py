"""Schemathesis over the server's own /openapi.json: `python -m tests.fuzz.openapi --count 2000`.

Requests are made of the document, right ones and wrong ones. No answer is a 5xx, each is as the
document says, and what the document rules out is refused. The server,
the front end and the scheduler are real; the model spells the alphabet.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.faults.sites import site
from tests.listening import in_thread
from tests.unit.engine.echo import EchoExecutor
from tests.unit.server.fake_engine import MODEL

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
LEFT_OUT = ("/dashboard/stream", "/explain")
"""One never ends, one takes the seconds that it is asked to."""
PATIENCE = 60.0
_SPELLED = re.compile(r"-?\d[\d.eE+-]*|true|false", re.IGNORECASE)


class Recorder(EchoExecutor):
    """Records profiles without files."""

    recording = False

    def call(self, method: str, args: list[Any]) -> Any:
        if method not in ("start_profile", "stop_profile"):
            return super().call(method, args)
        before, self.recording = self.recording, method == "start_profile"
        return not before if self.recording else {"writing": False, "failures": [], "files": []}


@asynccontextmanager
async def sound() -> AsyncIterator[str]:
    """The address of a fresh server, which is found sound at the end."""
    async with site(executor=Recorder) as where:
        yield f"http://127.0.0.1:{where.port}"
        async with asyncio.timeout(PATIENCE):
            while where.app.engine.num_unfinished:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        where.app.core.scheduler.check_integrity()
        await where.assert_unharmed()


def served() -> AbstractContextManager[str]:
    return in_thread(sound())


def fuzz(count: int, seed: int, *, in_turn: bool = False) -> Counter[int]:
    """Statuses of the answers to about `count` requests for each operation and kind of request.

    Args:
        in_turn: operations take turns in which kind they get: right requests or wrong ones.
    """
    statuses: Counter[int] = Counter()
    with served() as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        schema.config.generation.codec = None  # "utf-8" has a table of all characters made
        kinds = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
        operations = [result.ok() for result in schema.get_all_operations()]
        for number, operation in enumerate(o for o in operations if o.path not in LEFT_OUT):
            for mode in [kinds[number % 2]] if in_turn else kinds:
                with suppress(Unsatisfiable):  # nothing is wrong where nothing is asked for
                    ask(operation, mode, count, seed, statuses)
    return statuses


def ask(
    operation: schemathesis.APIOperation,
    mode: GenerationMode,
    count: int,
    seed: int,
    statuses: Counter[int],
) -> None:
    """Send requests of one kind, and hold the answers to the document."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        named = isinstance(case.body, dict) and "model" in case.body
        if named and mode is GenerationMode.POSITIVE:
            case.body["model"] = MODEL  # else hardly anybody gets further than this
        response = case.call()
        statuses[response.status_code] += 1
        left_out = {negative_data_rejection} if _may_mean_another(case.body) else set()
        case.validate_response(response, checks=[c for c in CHECKS if c not in left_out])

    send()


def _may_mean_another(body: Any) -> bool:
    """Whether a body has a value that the server reads as one of another type: "5" and "true" as
    what they spell, 0 and 1 as booleans. The document does not have these."""
    if isinstance(body, dict | list):
        return any(map(_may_mean_another, body.values() if isinstance(body, dict) else body))
    return body in (0, 1) or (isinstance(body, str) and _SPELLED.fullmatch(body) is not None)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.openapi", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="requests an operation and kind")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    begin = time.monotonic()
    statuses = fuzz(args.count, args.seed)
    seconds = time.monotonic() - begin
    print(f"tests.fuzz.openapi: {statuses.total()} requests in {seconds:.0f} s: {dict(statuses)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
