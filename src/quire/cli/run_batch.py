"""`quire run-batch`: answer the requests of a file in OpenAI's batch format."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

from quire.cli.serve import add_answer_flags
from quire.cli.template import add_chat_template_flag, chat_template
from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import Flags, add_engine_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files, the flags of answers and the engine's flags to `parser`."""
    files = Flags(parser.add_argument_group("batch"))
    files(
        "-i --input-file",
        None,
        "one request per line with custom_id, url and body: completions, chats, responses, "
        "embeddings, scores, rankings",
        type=Path,
        required=True,
    )
    text = "one answer per line, in order of completion, with its custom_id"
    files("-o --output-file", None, text, type=Path, required=True)
    files(
        "--resume",
        False,
        "skip requests that succeeded in the output file; without it the file is overwritten",
    )
    add_answer_flags(files)
    add_chat_template_flag(files)
    add_engine_flags(parser, positional=True)


def run(namespace: argparse.Namespace) -> int:
    """Answer every line of the file.

    Raises:
        QuireError: a file cannot be read or written, or the model cannot start.
    """
    from quire.server.batch import keep_succeeded

    source: Path = namespace.input_file
    target: Path = namespace.output_file
    args = EngineArgs.from_cli_args(namespace)
    if not source.is_file():
        raise ConfigError(f"There is no file {source}.", param="--input-file")
    if target.exists() and target.samefile(source):
        raise ConfigError("The input and the output are the same file.", param="--output-file")
    try:
        done = keep_succeeded(target) if namespace.resume else set()
        with target.open("ab" if namespace.resume else "wb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"Cannot write {target}: {error.strerror}.", param="--output-file"
        ) from None
    try:
        return asyncio.run(_run(args, namespace, done))
    except KeyboardInterrupt:
        print("interrupted; --resume continues", file=sys.stderr)
        raise


async def _run(args: EngineArgs, namespace: argparse.Namespace, done: set[str]) -> int:
    from tqdm import tqdm

    from quire.frontend.async_llm import AsyncLLM
    from quire.server.app import create_app
    from quire.server.batch import Batch, read_lines
    from quire.server.options import AppOptions
    from quire.server.tool_results import reads_images

    if args.max_itl_stretch is None:  # nobody reads a stream, so long steps are best
        args = replace(args, max_itl_stretch=math.inf)
    total = sum(1 for _ in read_lines(namespace.input_file)) - len(done)
    engine = await AsyncLLM.start(args)
    try:
        options = AppOptions(
            max_body_bytes=sys.maxsize,
            max_queued_requests=sys.maxsize,
            chat_template=chat_template(namespace),
            tool_call_parser=namespace.tool_call_parser,
            reasoning_parser=namespace.reasoning_parser,
            default_chat_template_kwargs=namespace.default_chat_template_kwargs,
            return_tokens_as_token_ids=namespace.return_tokens_as_token_ids,
        )
        names = tuple(namespace.served_model_name or (args.model,))
        images = await reads_images(engine, options.chat_template)
        app = create_app(engine, names, options, tool_images=images)
        began = time.monotonic()
        with (
            namespace.output_file.open("ab") as out,
            tqdm(total=total, unit="request", disable=None) as bar,
        ):
            batch = Batch(app, engine, out, bar.update)
            await batch.run(read_lines(namespace.input_file), done)
    finally:
        engine.shutdown()
    seconds = time.monotonic() - began
    skipped = f", {len(done)} answered before" if done else ""
    print(
        f"{batch.num_succeeded} answered, {batch.num_failed} failed{skipped}, {seconds:.1f} s; "
        f"see {namespace.output_file}",
        file=sys.stderr,
    )
    return 0
