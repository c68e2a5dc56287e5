"""The grammar of a structural tag's format, for llguidance.

A lexer reads the longest text of a terminal. So neighbours without schemas become one terminal:
`[a-z]+` before `abc` then means what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from quire.text import tag_formats
from quire.text.call_grammars.writing import ANY, Writing, without
from quire.text.composition import Grammar, Specials, pieces, until


def write_format(
    tag: tag_formats.FormattedTag, specials: Specials, lark_of: Callable[[str], str]
) -> tuple[Writing, dict[str, Grammar]]:
    """Return the grammar of a format, with those of its `grammar` parts.

    Args:
        lark_of: the Lark grammar of any grammar.

    Raises:
        ValueError: it cannot be served.
    """
    writer = _Writer(Writing(specials), lark_of)
    writer.out.rule("start", writer.terminal(writer.write(tag.format)).lark or '""')
    return writer.out, writer.grammars


class _Part(NamedTuple):
    """A part in Lark. A flat one may be used in a terminal; a lazy one ends at its first match."""

    lark: str
    flat: bool
    lazy: bool = False


class _Writer:
    def __init__(self, out: Writing, lark_of: Callable[[str], str]) -> None:
        self.out = out
        self.grammars: dict[str, Grammar] = {}
        self._lark_of = lark_of
        self._pieces = partial(pieces, specials=out.specials)
        self._count = 0

    def write(
        self, form: tag_formats.Format, ends: Sequence[str | tag_formats.Token] = ()
    ) -> _Part:
        """Return a part, up to the first of `ends` if there are any."""
        match form:
            case tag_formats.AnyText():
                return self._any_text(form.excludes, ends)
            case tag_formats.TriggeredTags():
                return self._triggered(form, ends)
            case tag_formats.Parts():
                *first, last = _some(form.elements, "elements")
                return self._joined([*map(self._bounded, first), self.write(last, ends)])
            case tag_formats.Either():
                elements = _some(form.elements, "elements")
                return self._either([self.write(each, ends) for each in elements])
        return self._joined([self._limited(form), *self._ends(ends)])

    def _bounded(self, form: tag_formats.Format) -> _Part:
        """Return a part that something follows."""
        if _is_unlimited(form):
            raise ValueError(
                "any_text and triggered_tags must be the last part, or in a tag with an end"
            )
        return self.write(form)

    def _limited(self, form: tag_formats.Format) -> _Part:
        match form:
            case tag_formats.ConstString():
                return self._mark(form.value)
            case tag_formats.Token():
                return self._mark(form)
            case tag_formats.JsonSchema():
                return _Part(self.out.json(self._name("part"), form.json_schema), False)
            case tag_formats.Regex():
                from llguidance import regex_to_lark

                return _Part(f"/{regex_to_lark(form.pattern, 'dw')}/", True)
            case tag_formats.Ebnf():
                name = self._name("grammar")
                self.grammars[name] = {"lark_grammar": self._lark_of(form.grammar)}
                return _Part(f"@{name}", False)
            case tag_formats.Tag():
                return self._tag(form)
            case tag_formats.SeparatedTags():
                return self._separated(form)
            case tag_formats.Optional():
                return self._repeated(form.content, "?")
            case tag_formats.Plus():
                return self._repeated(form.content, "+")
            case tag_formats.Star():
                return self._repeated(form.content, "*")
            case tag_formats.Repeat():
                most = "" if form.max < 0 else form.max
                if form.min < 0 or -1 < form.max < form.min:
                    raise ValueError(f"repeat has min {form.min} and max {form.max}")
                times = f"{{{form.min},{most}}}"
                return self._repeated(form.content, times) if form.max else _Part("", True)
        raise AssertionError(form)

    def _tag(self, tag: tag_formats.Tag) -> _Part:
        return self._joined([self._mark(tag.begin), self.write(tag.content, tag.ends)])

    def _separated(self, form: tag_formats.SeparatedTags) -> _Part:
        first = self._either([self._bounded(each) for each in _some(form.tags, "tags")])
        if not form.stop_after_first:
            first = self._once(first)
            more = self._joined([self._mark(form.separator), first])
            first = self._joined([first, _Part(f"({more.lark})*", more.flat)])
        return first if form.at_least_one else _Part(f"({first.lark})?", first.flat)

    def _repeated(self, content: tag_formats.Format, times: str) -> _Part:
        inner = self._bounded(content)
        return _Part(f"({inner.lark}){times}", inner.flat) if inner.lark else inner

    def _any_text(self, excludes: Sequence[str], ends: Sequence[str | tag_formats.Token]) -> _Part:
        """Return free text up to and with the first of `ends`."""
        text = self.out.rule(self._name("TEXT"), self._free(excludes, ends))
        joined = self._joined([_Part(text, True), *self._ends(ends)])
        return joined._replace(lazy=joined.flat and bool(ends))

    def _free(self, excludes: Sequence[str], ends: Sequence[str | tag_formats.Token]) -> str:
        """Return a terminal of text without `excludes`, and without `ends` in letters."""
        spelled = [end for end, mark in zip(ends, map(self._mark, ends), strict=True) if mark.flat]
        barred = [text for text in (*excludes, *spelled) if isinstance(text, str) and text]
        return without(ANY, barred)

    def _triggered(
        self, form: tag_formats.TriggeredTags, ends: Sequence[str | tag_formats.Token]
    ) -> _Part:
        tags, number = _some(form.tags, "tags"), self._name("tags")
        bodies: dict[str, list[str]] = {}
        whole: list[_Part] = []
        for tag in tags:
            begin = tag.begin
            trigger = next((t for t in form.triggers if t and str(begin).startswith(t)), None)
            if trigger is None or not isinstance(begin, str):
                raise ValueError(f"no trigger is the beginning of {begin!r}")
            lead = [*self._pieces(trigger)[1:], *self._pieces(begin[len(trigger) :])]
            body = self._once(self.terminal(self.write(tag.content, tag.ends)))
            bodies.setdefault(trigger, []).append(" ".join([*lead, body.lark]))
            whole.append(self._joined([self._mark(begin), body]))
        free = self.out.rule(self._name("FREE"), self._free(form.excludes, ends))
        calls = []
        for index, (trigger, choices) in enumerate(bodies.items()):
            first = self._pieces(trigger)[0]
            head = f"{number}_head_{index}"
            self.out.lines.append(until(head, [[first]], free))
            calls.append(self.out.rule(f"{number}_{index}", f"{head} ({' | '.join(choices)})"))
        call = _Part(f"({' | '.join(calls)})", False)
        begun = [self._either(whole)] if form.at_least_one else []
        if form.stop_after_first:
            if begun:
                return self._joined([*begun, *self._ends(ends)])
            plain = self._any_text([*form.excludes, *form.triggers], ends)
            return self._either([self._joined([call, *self._ends(ends)]), plain])
        barred = [*form.excludes, *(form.triggers if ends else ())]
        return self._joined(
            [*begun, _Part(f"{call.lark}*", False), self._any_text(barred, ends)], merge=False
        )

    def _ends(self, ends: Sequence[str | tag_formats.Token]) -> list[_Part]:
        return [self._either([*map(self._mark, ends)])] if ends else []

    def _mark(self, text: str | tag_formats.Token) -> _Part:
        """Return a text with its control tokens, or a single control token."""
        if isinstance(text, tag_formats.Token):
            token = self.out.specials.get(text.token)
            if token is None:
                raise ValueError(f"{text.token!r} is no control token of the model")
            return _Part(f"<[{token}]>", False)
        found = self._pieces(text)
        return _Part(" ".join(found), not any(each.startswith("<[") for each in found))

    def _either(self, parts: Sequence[_Part]) -> _Part:
        if len(parts) == 1:
            return parts[0]
        texts = [part.lark or '""' for part in self._apart(parts)]
        return _Part(f"({' | '.join(texts)})", all(p.flat for p in parts))

    def _apart(self, parts: Sequence[_Part]) -> Sequence[_Part]:
        """Return the parts of a terminal if all are flat. Else each flat one is a terminal: the
        lexer would read the longest text of each of its pieces."""
        if all(part.flat for part in parts):
            return parts
        return [self.terminal(part) for part in parts]

    def _joined(self, parts: Sequence[_Part], *, merge: bool = True) -> _Part:
        """Return the parts in order; flat neighbours become a terminal."""
        found: list[_Part] = []
        for part in parts:
            if not part.lark:
                continue
            if merge and found and found[-1].flat and part.flat:
                both = f"{found.pop().lark} {part.lark}"
                part = _Part(self.out.rule(self._name("JOINED"), both), True, part.lazy)
            found.append(part)
        if len(found) == 1:
            return found[0]
        return _Part(" ".join(part.lark for part in self._apart(found)), False)

    def terminal(self, part: _Part) -> _Part:
        """Return a part of a grammar: a flat one as a terminal.

        The lexer sees too late that text without its end cannot go on behind it, so a trigger of
        one character would be missed there. A lazy terminal ends at once.
        """
        if not part.flat:
            return part
        if not part.lazy:
            return self._once(part)
        name = self._name("lazy")
        self.out.rule(f"{name}[lazy]", part.lark)
        return _Part(name, False)

    def _once(self, part: _Part) -> _Part:
        """Return a part that may be used several times; its text would double at each level."""
        kind = "ONCE" if part.flat else "once"
        return part._replace(lark=self.out.rule(self._name(kind), part.lark)) if part.lark else part

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"


def _is_unlimited(form: tag_formats.Format) -> bool:
    """Return whether nothing but the end of the text ends a part."""
    match form:
        case tag_formats.AnyText():
            return True
        case tag_formats.TriggeredTags():
            return not (form.at_least_one and form.stop_after_first)
        case tag_formats.Parts(elements=elements):
            return bool(elements) and _is_unlimited(elements[-1])
        case tag_formats.Either(elements=elements):
            return any(map(_is_unlimited, elements))
        case tag_formats.Tag():
            return not form.ends and _is_unlimited(form.content)
    return False


def _some(given: list[Any], name: str) -> list[Any]:
    if not given:
        raise ValueError(f"{name} is empty")
    return given
