"""Talk to `quire serve` with OpenAI's client: `python examples/openai_client.py [base URL]`.

Needs `pip install openai`, and a server: `quire serve` listens on http://127.0.0.1:8000.
"""

import sys

from openai import OpenAI


def main(base_url: str = "http://127.0.0.1:8000/v1") -> None:
    client = OpenAI(base_url=base_url, api_key="unused")
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Tell me a story about a dog."}],
        max_tokens=48,
        temperature=0.7,
        seed=1,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:2])
