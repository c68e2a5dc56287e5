"""Chat templates: Jinja2 in its immutable sandbox, with limits on time and memory.

The environment is the one that Hugging Face's chat templates are written for: trimmed blocks,
loop controls, `raise_exception`, `strftime_now`, an unescaped `tojson`, `{% generation %}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quire.core.errors import InvalidRequestError
from quire.text import template_budget as budget
from quire.text import template_filters as filters

_REMOVED_FILTERS = {
    "batch", "center", "filesizeformat", "format", "pprint", "random", "slice", "striptags",
    "urlize", "wordwrap", "xmlattr",
}  # fmt: skip
"""Filters that no chat template needs; most can make a large value from a small one."""
_REMOVED_GLOBALS = ("cycler", "joiner", "lipsum")
_SPELLING_FILTERS = {
    "capitalize", "e", "escape", "forceescape", "lower", "safe", "string", "title", "trim",
    "truncate", "upper", "urlencode", "wordcount",
}  # fmt: skip
"""Filters that convert any value to a string."""


def render_template(source: str, variables: dict[str, Any]) -> str:
    """Render template `source` with `variables`.

    Raises:
        InvalidRequestError: the template is malformed, fails on this input, refuses it
            (`raise_exception`), reaches outside the sandbox, or uses more than its budget.
    """
    token = budget.CURRENT.set(budget.Budget())
    try:
        return _compile(source).render(variables)
    except SecurityError as error:
        raise InvalidRequestError(
            f"The chat template was stopped: {_reason(error)}.",
            fix="Shorten the conversation, or use another template.",
            param="messages",
        ) from error
    except TemplateSyntaxError as error:
        raise _refused(
            f"The chat template is malformed in line {error.lineno}: {_reason(error)}."
        ) from error
    except (RecursionError, MemoryError, OverflowError) as error:
        raise _refused("The chat template nests or grows too far.") from error
    except Exception as error:  # a template can raise anything that Python can
        raise InvalidRequestError(
            f"The chat template failed on this conversation: {_reason(error)}.",
            fix="Check the roles and fields that this model's template expects.",
            param="messages",
        ) from error
    finally:
        budget.CURRENT.reset(token)


def _reason(error: Exception) -> str:
    return (getattr(error, "message", None) or str(error)).rstrip(".")


def _refused(what: str) -> InvalidRequestError:
    return InvalidRequestError(what, fix="Use another template.", param="messages")


@lru_cache(maxsize=16)
def _compile(source: str) -> Template:
    return _environment().from_string(source)


class _BoundedCode(CodeGenerator):
    """Generates code whose `~` operator is charged."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self.write("environment.tilde(")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write(")")


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks training text: its content is kept."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """Charges every operation that can make a value larger, before it is done."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _BoundedCode
    concat = staticmethod(budget.bounded_concat)
    tilde = staticmethod(budget.bounded_join)
    step = staticmethod(budget.step)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget.check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        if obj is budget.step:
            return budget.step()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, (str, bytes, int)):
            args = _check_method(owner, obj.__name__, args, kwargs)
        return budget.charge_result(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        layout = str(value.__self__)

        def bounded(*args: Any, **kwargs: Any) -> str:
            budget.check_format(layout)
            if re.search(r"\{[^{}]*\{", layout.replace("{{", "")):
                raise SecurityError("it formats with a computed width")
            # The layout may contain a value many times: each field is charged with all values.
            for _ in range(layout.count("{") + 1):
                budget.charge_spelling([args, kwargs])
            return wrapped(*args, **kwargs)

        return bounded

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Raise immediately; Jinja itself raises only when the value is used."""
        raise SecurityError(f"it reaches for {attribute!r} of a {type(obj).__name__}")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        repeated = (nodes.For, nodes.Macro, nodes.CallBlock)
        for node in tree.find_all(repeated):
            assert isinstance(node, repeated)
            call = nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
        return tree


def _check_method(
    owner: str | bytes | int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Charge a method of a string or number before it is called; return its arguments."""
    match name, args:
        case "to_bytes" | "translate", _:
            raise SecurityError(f"it calls {name}")
        case "center" | "ljust" | "rjust" | "zfill", (width, *_):
            budget.check_width(width)
        case "expandtabs", _:
            budget.check_width(next(iter([*args, *kwargs.values()]), 8))
            budget.charge(len(str(owner)) * 8)
        case "replace", (old, new, *_):
            budget.check_replace(owner, old, new)
        case "join", (items,):
            return (budget.check_join(owner, items),)
    return args


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=budget.charge_spelling,
        optimized=False,  # otherwise constant expressions are evaluated without a budget
        extensions=[_Generation, loopcontrols],
    )
    environment.filters = {
        name: budget.charged(filter_, spells=name in _SPELLING_FILTERS)
        for name, filter_ in environment.filters.items()
        if name not in _REMOVED_FILTERS
    } | {
        "indent": filters.indent,
        "join": filters.join,
        "replace": filters.replace,
        "sum": filters.sum_,
        "tojson": filters.tojson,
    }
    for name in _REMOVED_GLOBALS:
        del environment.globals[name]
    environment.globals |= {
        "namespace": filters.PublicNamespace,
        "raise_exception": filters.raise_exception,
        "strftime_now": filters.strftime_now,
    }
    return environment
