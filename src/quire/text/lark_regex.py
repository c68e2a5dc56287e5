"""Lark grammars without recursion as regular expressions, which also hold inside a JSON string."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

LONGEST = 2**13
"""Maximum characters of a grammar, and of its expression, to bound the work."""
_COMMON = {
    "LF": r"\n", "CR": r"\r", "NEWLINE": r"(\r?\n)+", "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+", "DIGIT": "[0-9]", "HEXDIGIT": "[a-fA-F0-9]", "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+", "LCASE_LETTER": "[a-z]", "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]", "WORD": "[A-Za-z]+", "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
}  # fmt: skip
"""Terminals that a grammar may import from `common`."""
_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|//[^\n]*)
    |(?P<line>\r?\n)
    |(?P<string>"(?:[^"\\\n]|\\.)*"i?)
    |(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[is]*)
    |(?P<import>%import\s+common\.(?P<common>\w+)(?:\s*->\s*(?P<alias>\w+))?)
    |(?P<define>[?!]?(?P<name>[A-Za-z_]\w*)(?:\.\d+)?\s*:)
    |(?P<as>->\s*\w+)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<times>~\s*(?P<least>\d+)(?:\s*\.\.\s*(?P<most>\d+))?)
    |(?P<sign>[()\[\]|*+?])""",
    re.VERBOSE,
)
_UNSUPPORTED = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?(?!:)|\\[bBAZzG0-9pPkN]|[*+?}][+?])")
"""Look-around, references, lazy and possessive repetition: automata do not have them."""
_ANCHORS = re.compile(r"[\^$]")


class _Token(NamedTuple):
    kind: str
    text: str


class _UnsupportedError(Exception):
    pass


def regex_of(grammar: str) -> str | None:
    """Return an expression for the same texts; None if the grammar is recursive or not regular."""
    if len(grammar) > LONGEST:
        return None
    try:
        found = _Rules(grammar).expression("start", ())
        re.compile(found)
    except (_UnsupportedError, RecursionError, re.error):
        return None
    return found


class _Rules:
    """The rules of a grammar, by name, as tokens."""

    def __init__(self, grammar: str) -> None:
        self._rules: dict[str, list[_Token]] = {}
        self._known: dict[str, str] = {}
        rule: list[_Token] | None = None
        position, begins = 0, True
        while position < len(grammar):
            match = _TOKEN.match(grammar, position)
            if match is None:
                raise _UnsupportedError
            kind, position = str(match.lastgroup), match.end()
            kind = next(k for k in ("import", "define", "times", kind) if match[k] is not None)
            if kind == "line":
                begins = True
            elif kind == "import":
                self._known[match["alias"] or match["common"]] = _common(match["common"])
            elif kind == "define":
                if not begins or match["name"] in self._rules:
                    raise _UnsupportedError
                rule = self._rules[match["name"]] = []
            elif kind not in ("space", "as"):
                if rule is None:
                    raise _UnsupportedError
                rule.append(_Token(kind, match[0]))
            if kind not in ("line", "space"):
                begins = False

    def expression(self, name: str, within: tuple[str, ...]) -> str:
        """Return the expression of a rule.

        Args:
            within: rules that refer to it.
        """
        if name in self._known:
            return self._known[name]
        if name in within or name not in self._rules:
            raise _UnsupportedError
        tokens = list(reversed(self._rules[name]))
        found = self._alternatives(tokens, (*within, name))
        if tokens:
            raise _UnsupportedError
        self._known[name] = found
        return found

    def _alternatives(self, tokens: list[_Token], within: tuple[str, ...]) -> str:
        """Read up to a closing bracket, without the bracket."""
        options, items, size = [], [""], 0
        while tokens and tokens[-1].text not in (")", "]"):
            token = tokens.pop()
            if token.text == "|":
                options.append("".join(items))
                items = [""]
            elif token.kind == "times" or token.text in ("*", "+", "?"):
                if not items[-1]:
                    raise _UnsupportedError
                items[-1] = f"(?:{items[-1]}{_times(token)})"
            else:
                items.append(self._atom(token, tokens, within))
                size += len(items[-1])
                if size > LONGEST:
                    raise _UnsupportedError
        return f"(?:{'|'.join([*options, ''.join(items)])})"

    def _atom(self, token: _Token, tokens: list[_Token], within: tuple[str, ...]) -> str:
        if token.kind == "word":
            return self.expression(token.text, within)
        if token.kind == "string":
            text = json.loads(token.text.removesuffix("i"))
            literal = re.escape(text).replace("\n", "n").replace("\r", "r").replace("\t", "t")
            return f"(?i:{literal})" if token.text.endswith("i") else f"(?:{literal})"
        if token.kind == "regex":
            return _plain(token.text)
        inner = self._alternatives(tokens, within)
        if not tokens or {"(": ")", "[": "]"}.get(token.text) != tokens.pop().text:
            raise _UnsupportedError
        return inner if token.text == "(" else f"(?:{inner}?)"


def _common(name: str) -> str:
    if name not in _COMMON:
        raise _UnsupportedError
    return f"(?:{_COMMON[name]})"


def _times(token: _Token) -> str:
    if token.kind != "times":
        return token.text
    counts = re.findall(r"\d+", token.text)
    return f"{{{','.join(counts)}}}"


def _plain(literal: str) -> str:
    """Return the expression between slashes; raise for what an automaton cannot match."""
    body, _, flags = literal[1:].rpartition("/")
    body = body.replace("\\/", "/")
    if _UNSUPPORTED.search(body) or _ANCHORS.search(_outside_classes(body)):
        raise _UnsupportedError
    return f"(?{flags}:{body})" if flags else f"(?:{body})"


def _outside_classes(body: str) -> str:
    """Return an expression without its classes and escapes; raise for operations on classes."""
    outside: list[str] = []
    position, inside = 0, -1
    while position < len(body):
        char, pair = body[position], body[position : position + 2]
        if char == "\\":
            position += 1
        elif inside < 0 and char == "[":
            position += pair == "[^"
            inside = position + 1
        elif inside < 0:
            outside.append(char)
        elif char == "]" and position > inside:
            inside = -1
        elif char == "[" or pair in ("--", "&&", "~~", "||"):
            raise _UnsupportedError
        position += 1
    if inside >= 0:
        raise _UnsupportedError
    return "".join(outside)
