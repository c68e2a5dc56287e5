"""Tool calls between tags, with one tag per argument.

Such a format is data: its reader is `server/tools/markup`, and its grammar `call_grammars/markup`.
"""

from __future__ import annotations

from typing import Literal

from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Markup:
    """The tags of one format, and their layout.

    Attributes:
        blocks: marks around calls, each with its end mark.
        function: begins the tag with a function's name; empty if the mark itself does.
        parameter: begins the tag with a parameter's name.
        name_end: ends both tags.
        value: begins a value that has a separate tag.
        bare: a call needs no mark around it.
        newlines: line breaks around a value that are not part of it: each, only both, or none.
        lead: text after the mark.
        head, before, after, tail: a call as the template writes it, `{name}` and `{key}` being
            names, and `{string}` whether a value is a text.
        several: a block may hold several calls.
    """

    blocks: dict[str, str]
    function: str
    function_end: str
    parameter: str
    parameter_end: str
    head: str
    before: str
    after: str
    tail: str
    lead: str = "\n"
    name_end: str = ">"
    value: str = ""
    bare: bool = False
    several: bool = False
    newlines: Literal["each", "both", "none"] = "both"

    @property
    def says_type(self) -> bool:
        """Return whether a tag says if its value is a text."""
        return "{string}" in self.before

    @property
    def ends(self) -> tuple[str, ...]:
        """Return what ends a value: its tag, or the next one if it is missing."""
        marks = (self.parameter_end, self.parameter, self.function_end, *self.blocks.values())
        return tuple(dict.fromkeys(marks))


_DSML = "｜DSML｜"

MARKUP = {
    "qwen3_coder": Markup(
        blocks={"<tool_call>": "</tool_call>"},
        function="<function=",
        function_end="</function>",
        parameter="<parameter=",
        parameter_end="</parameter>",
        head="<function={name}>\n",
        before="<parameter={key}>\n",
        after="\n</parameter>\n",
        tail="</function>\n",
        bare=True,
        newlines="each",
    ),
    "seed_oss": Markup(
        blocks={"<seed:tool_call>": "</seed:tool_call>"},
        function="<function=",
        function_end="</function>",
        parameter="<parameter=",
        parameter_end="</parameter>",
        head="<function={name}>\n",
        before="<parameter={key}>",
        after="</parameter>\n",
        tail="</function>\n",
    ),
    "minimax_m2": Markup(
        blocks={"<minimax:tool_call>": "</minimax:tool_call>"},
        function="<invoke name=",
        function_end="</invoke>",
        parameter="<parameter name=",
        parameter_end="</parameter>",
        head='<invoke name="{name}">\n',
        before='<parameter name="{key}">',
        after="</parameter>\n",
        tail="</invoke>\n",
        several=True,
    ),
    "deepseek_v32": Markup(
        blocks={
            f"<{_DSML}function_calls>": f"</{_DSML}function_calls>",
            f"<{_DSML}tool_calls>": f"</{_DSML}tool_calls>",
        },
        function=f"<{_DSML}invoke name=",
        function_end=f"</{_DSML}invoke>",
        parameter=f"<{_DSML}parameter name=",
        parameter_end=f"</{_DSML}parameter>",
        head=f'<{_DSML}invoke name="{{name}}">\n',
        before=f'<{_DSML}parameter name="{{key}}" string="{{string}}">',
        after=f"</{_DSML}parameter>\n",
        tail=f"</{_DSML}invoke>\n",
        several=True,
        newlines="none",
    ),
    "glm45": Markup(
        blocks={"<tool_call>": "</tool_call>"},
        function="",
        function_end="</tool_call>",
        parameter="<arg_key>",
        parameter_end="</arg_value>",
        head="{name}\n",
        before="<arg_key>{key}</arg_key>\n<arg_value>",
        after="</arg_value>\n",
        tail="",
        lead="",
        name_end="</arg_key>",
        value="<arg_value>",
        newlines="none",
    ),
}
