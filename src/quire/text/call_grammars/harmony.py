"""Calls on gpt-oss's channels: see `harmony` in `server/tools/formats`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from quire.text.call_grammars.writing import ANY, Function, Writing, quoted, without


def harmony(out: Writing, functions: Sequence[Function]) -> None:
    """Return the grammar of messages; the body of a message to a function is its arguments."""
    if out.otherwise is not None:
        _alone(out, functions)
        return
    free = f"{ANY} & ~/(?s:.*)to=functions\\.(?s:.*)/"
    out.rule("WORD", "/(commentary|analysis)( (json|code)?)?/")
    role = _span(out, "role", free, ["<|channel|>"])
    header = _span(out, "header", free, ["<|message|>"])
    ends = ["<|end|>", "<|call|>", "<|return|>"]
    body = _span(out, "body", ANY, ends)
    channel, message, start = (out.text(f"<|{m}|>") for m in ("channel", "message", "start"))
    constrain = f'({out.text("<|constrain|>")} "json")?'
    heads = []
    for index, function in enumerate(functions):
        to = f"to=functions\\.{re.escape(function.name)}"
        out.rule(f"CHANNEL_{index}", f"/(commentary|analysis) {to}( (json|code)?)?/")
        out.rule(f"ROLE_{index}", f"/(assistant)? ?{to} ?/")
        schema = {"type": "object"} if function.schema is None else function.schema
        heads.append(
            f"({role} CHANNEL_{index} | ROLE_{index} {channel} WORD) {constrain} {message} "
            f"{out.json(f'arguments_{index}', schema)}"
        )
    out.rule("call", *heads)
    out.rule("end", *map(out.text, ends))
    ended = f"{role} {header} {body} | call end"
    opened = f"{role} {header} BODY_OPEN | call"
    out.rule("BODY_OPEN", without(ANY, [e for e in ends if e not in out.specials]))
    out.rule("ended", f"({start})? ({ended})")
    out.rule("opened", f"({start})? ({opened})")
    out.rule("start", "ended* opened?")


def _alone(out: Writing, functions: Sequence[Function]) -> None:
    """Write reasoning messages, then calls or JSON on the channel `final`."""
    channel, message, start = (out.text(f"<|{m}|>") for m in ("channel", "message", "start"))
    thought = _span(out, "thought", ANY, ["<|end|>"])
    following = f'{start} "assistant"'
    out.rule("reasoning", f'{channel} "analysis" {message} {thought} {following}')
    calls = []
    for index, function in enumerate(functions):
        to = f"to=functions\\.{re.escape(function.name)}"
        out.rule(f"CHANNEL_{index}", f"/(commentary|analysis) {to}( (json|code)?)?/")
        schema = {"type": "object"} if function.schema is None else function.schema
        constrain = f'({out.text("<|constrain|>")} "json")?'
        arguments = out.json(f"arguments_{index}", schema)
        calls.append(f"{channel} CHANNEL_{index} {constrain} {message} {arguments}")
    out.rule("call", *calls)
    out.rule("end", *map(out.text, ["<|end|>", "<|call|>"]))
    otherwise = out.json("otherwise", out.otherwise)
    final = f'{channel} "final" {message} {otherwise}'
    out.rule("start", f"reasoning* (call (end {following} call)* end? | {final})", otherwise)


def _span(out: Writing, name: str, text: str, marks: Sequence[str]) -> str:
    """Write text up to and including the first of `marks`."""
    spelled = [mark for mark in marks if mark not in out.specials]
    terminal, options = name.upper(), []
    out.rule(f"{terminal}_TEXT", without(text, spelled))
    if control := [out.text(mark) for mark in marks if mark in out.specials]:
        options.append(f"{terminal}_TEXT ({' | '.join(control)})")
    if spelled:
        options.append(
            out.rule(f"{terminal}_SPELLED", f"{terminal}_TEXT ({' | '.join(map(quoted, spelled))})")
        )
    return out.rule(name, *options)
