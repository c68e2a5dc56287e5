"""Grammars without recursion are the same texts as their expressions."""

from __future__ import annotations

import re

import pytest

from quire.text.lark_regex import regex_of

PATCH = r"""
start: begin_patch hunk+ end_patch  // what an agent sends
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk
    | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change: (change_context | change_line)+ [eof_line]
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF
%import common.LF
"""
GOOD = """*** Begin Patch
*** Add File: a/b.py
+x = "1"
+
*** Update File: c
@@ def f():
-old
+new
*** End of File
*** Delete File: d
*** End Patch"""


def test_a_patch() -> None:
    found = regex_of(PATCH)
    assert found is not None
    assert re.fullmatch(found, GOOD)
    assert re.fullmatch(found, f"{GOOD}\n")
    for wrong in (GOOD.replace("Begin", "Start"), GOOD[1:], f"{GOOD}\n\n", GOOD.replace("+x", "x")):
        assert not re.fullmatch(found, wrong)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('start: "a.b" | "c"i', ["a.b", "c", "C"], ["axb", "A.B", ""]),
        ('start: ("a" | "b")~2 "c"~1..2', ["abc", "bacc"], ["ac", "abccc"]),
        ('start: A*\nA.2: /[x-z]/ "\\n"', ["", "x\ny\n"], ["x", "a\n"]),
        ('?start: [word] END\nword: WORD\n!END: "."\n%import common.WORD', ["ab.", "."], ["ab"]),
        ('start: L "x"\n%import common.LETTER -> L', ["ax"], ["x", "1x"]),
        ("start: /a\\/b[\\/^$]/i", ["a/b/", "A/B$"], ["ab"]),
        (r"start: /[^\]a]\[[]$]/", ["x[]", "b[$"], ["a[]", "][]"]),
        ('start: "a" | ', ["a", ""], ["aa"]),
    ],
)
def test_other_grammars(grammar: str, good: list[str], bad: list[str]) -> None:
    found = regex_of(grammar)
    assert found is not None
    assert [text for text in good if not re.fullmatch(found, text)] == []
    assert [text for text in bad if re.fullmatch(found, text)] == []


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "(" start? ")"',
        'start: a\na: "x" b\nb: a | "y"',
        'start: "a" "b"\n%ignore " "',
        "start: missing",
        'other: "a"',
        "start: /(?=a)a/",
        r"start: /\bword\b/",
        "start: /a+?/",
        "start: /[a[b]]/",
        "start: /[a&&b]/",
        "start: /^a$/",
        'start: "a"..“z”',
        'start: x{"a"}\nx{y}: y',
        "start: /a(/",
        'start: ("a"',
        'start: "a")',
        "start: *",
        'start: "a"\nstart: "b"',
        "%import common.UNKNOWN\nstart: UNKNOWN",
        "start: %json {}",
        'start[lazy]: "a"',
        "",
        "start: a9\na0: /x/\n" + "\n".join(f"a{i + 1}: {f'a{i} ' * 9}" for i in range(9)),
        "start: " + "(" * 4000 + "a" + ")" * 4000,
        "start: /" + "[" * 8000 + "/",
        'start: "' + "x" * 9000 + '"',
    ],
)
def test_what_is_no_expression(grammar: str) -> None:
    assert regex_of(grammar) is None
