"""The tasks of a newcomer: what is typed, and what has to come back."""

from __future__ import annotations

from dataclasses import dataclass

SERVE = "quire serve --port 8000 --enable-lora --lora-dir ."
"""The server that the tasks with `curl` ask; it runs all the while."""

_POST = "curl -s localhost:8000{path} -H 'Content-Type: application/json' -d '{body}'"


@dataclass(frozen=True, slots=True)
class Task:
    """One line of a shell.

    Attributes:
        expected: a regular expression that the output, standard error included, has to match.
        status: how it has to end.
        lines: of the output that the table shows, from the first that matches.
    """

    typed: str
    expected: str
    status: int = 0
    lines: int = 2


def _post(path: str, body: str, expected: str) -> Task:
    return Task(_POST.format(path=path, body=body), expected)


FIRST_STEPS = [
    Task("quire", r"usage: quire COMMAND"),
    Task("python -m quire --version", r"^quire \d"),
    Task("quire serve --help | head -1", r"usage: quire serve"),
    Task("quire doctor | tail -1", r"\d+ ok, \d+ warn, 0 fail"),
    Task("quire plan | grep -A1 'It fits'", r"quire serve embedded"),
    Task("quire plan qwen3-0.6b | grep -A2 'It fits'", r"serve qwen3-0.6b --load-format=dummy"),
    Task(
        "quire plan qwen3-0.6b --kv-cache-memory-bytes 1MiB --max-model-len 4096",
        r"It does not fit",
        1,
        1,
    ),
    Task("quire config --max-num-seqs 8 | grep max-num-seqs", r"max-num-seqs +8 +flag", lines=1),
]
MISTAKES = [
    Task("quire serv", r"did you mean serve\?", 2),
    Task("quire run embedded", r"did you mean chat or run-batch\?", 2),
    Task("quire serve --prot 8000", r"did you mean --port\?", 2),
    Task("quire complete hi --temperature hot", r"--temperature: invalid float value: 'hot'", 2),
    Task("quire serve ./no-such-model", r"\./no-such-model", 1),
    Task("quire serve embeded", r"did you mean embedded", 1),
    Task("quire serve empty-folder", r"neither config.json nor a .gguf file", 1),
    Task("quire serve notes.txt", r"is not a model that Quire reads", 2),
    Task("quire serve --port 8000", r"Port \d+ of 127.0.0.1 is in use", 2),
]
ANSWERS = [
    Task("quire complete --temperature 0 --max-tokens 12 'Once upon a time'", r"12 tokens"),
    Task(
        r"printf '/temp 0\nHi\n/retry\n/exit\n' | quire chat --max-tokens 8",
        r"Temperature: 0.0",
    ),
    Task("quire complete --max-tokens 200 --ignore-eos hi | head -c 0", r"^(?!.*Traceback)", 141),
    Task(
        "timeout --preserve-status -s INT 2 quire complete --ignore-eos hi > /dev/null",
        r"^(?!.*Traceback)",
        130,
    ),
    Task(
        """python -c "from quire import LLM, SamplingParams; """
        """answer = LLM('embedded').generate('Hi', SamplingParams(max_tokens=4, temperature=0)); """
        """print(answer[0].outputs[0].token_ids)" 2> /dev/null""",
        r"\[\d+, \d+, \d+, \d+\]",
    ),
    Task(
        """python -c "from quire import LLM; """
        """print(len(LLM('embedded', runner='pooling').embed('Hi')[0].outputs.embedding))" """
        "2> /dev/null",
        r"^\d+$",
    ),
]
ENDPOINTS = [
    Task("curl -s localhost:8000/health -w '%{http_code}'", r"200"),
    Task("curl -s localhost:8000/v1/models", r'"id":"embedded"'),
    _post(
        "/v1/completions",
        '{"model": "embedded", "prompt": "Once", "max_tokens": 4, "temperature": 0}',
        r'"completion_tokens":4',
    ),
    _post(
        "/v1/chat/completions",
        '{"model": "embedded", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, '
        '"temperature": 0}',
        r'"role":"assistant"',
    ),
    _post(
        "/v1/chat/completions",
        '{"model": "embedded", "messages": [{"role": "user", "content": "Hi"}], "stream": true, '
        '"temperature": 0}',
        r"data: \[DONE\]",
    ),
    _post(
        "/v1/chat/completions",
        '{"model": "embedded", "messages": [{"role": "user", "content": "A fox?"}], '
        '"response_format": {"type": "json_schema", "json_schema": {"name": "fox", "schema": '
        '{"type": "object", "properties": {"red": {"type": "boolean"}}, "required": ["red"]}}}, '
        '"temperature": 0}',
        r'"content":"\{.*red.*(true|false)',
    ),
    _post(
        "/v1/chat/completions",
        '{"model": "embedded", "messages": [{"role": "user", "content": "Weather?"}], '
        '"tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": '
        '"object", "properties": {"celsius": {"type": "boolean"}}, "required": ["celsius"]}}}], '
        '"tool_choice": {"type": "function", "function": {"name": "weather"}}, "temperature": 0}',
        r'"name":"weather"',
    ),
    _post(
        "/v1/messages",
        '{"model": "embedded", "max_tokens": 4, "temperature": 0, "messages": '
        '[{"role": "user", "content": "Hi"}]}',
        r'"type":"message"',
    ),
    _post(
        "/v1/responses",
        '{"model": "embedded", "input": "Hi", "max_output_tokens": 16, "temperature": 0}',
        r'"object":"response"',
    ),
    _post("/tokenize", '{"model": "embedded", "prompt": "Once upon a time"}', r'"count":\d'),
    _post(
        "/v1/load_lora_adapter",
        '{"lora_name": "mine", "lora_path": "adapter"}',
        r"mine",
    ),
    _post("/v1/completions", '{"model": "gpt-4", "prompt": "Hi"}', r"'gpt-4' is not served here"),
    _post(
        "/v1/completions",
        '{"model": "embedded", "prompt": "Hi", "temprature": 1}',
        r"did you mean temperature\?",
    ),
]
MEASURES = [
    Task(
        "quire bench latency --output-len 8 --repetitions 1 --plot-dir plots",
        r"^bench latency \(1 repetition\)",
        lines=1,
    ),
    Task("quire explain --url http://localhost:8000", r"(?i)time|share", lines=1),
    Task("quire tune --slo soon", r"--slo", 2),
    Task("quire quantize embedded --scheme int8 --output small", r"small", lines=1),
]

SECTIONS = {
    "First steps": FIRST_STEPS,
    "Mistakes": MISTAKES,
    "Answers": ANSWERS,
    "Endpoints": ENDPOINTS,
    "Measuring": MEASURES,
}
TASKS = [task for tasks in SECTIONS.values() for task in tasks]
