"""instructor, in the four modes that its users choose among."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import instructor
import openai

from tests.clients.tasks import CHAT, Cat, Den


def scenarios(url: str) -> Iterator[Callable[[], object]]:
    for name in ("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA"):
        mode = getattr(instructor.Mode, name, None)
        if mode is None:
            continue
        plain = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        client = instructor.from_openai(plain, mode=mode)

        def extract(client: instructor.Instructor = client) -> None:
            client.create(model="tiny", messages=CHAT, response_model=Cat, max_retries=1)
            client.create(model="tiny", messages=CHAT, response_model=Den, max_retries=1)

        def partial(client: instructor.Instructor = client) -> None:
            for _ in client.create_partial(model="tiny", messages=CHAT, response_model=Cat):
                pass

        for scenario in (extract, partial):
            scenario.__name__ = f"{name.lower()}_{scenario.__name__}"
            yield scenario
