"""Enumerate small wrong edits of a Python source file, each of which a test should notice."""

import ast
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.Pow: "*",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.BitXor: "|",
}
_NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "minimum": "maximum",
    "maximum": "minimum",
    "popleft": "pop",
}
_TRANSPARENT = {"reversed", "sorted", "abs", "set"}
_COUNT = re.compile(
    r"_?(num_|max_|first|last|begin|end|start|full|known|position|size|count|total|budget|step)"
)


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of bytes [start, end) of a source file.

    Attributes:
        path: of the file, relative to the package.
        line: where it begins, from 1.
        number: distinguishes the edits of a line.
        scope: the function or class around it.
        before, after: the changed lines.
    """

    path: str
    line: int
    number: int
    scope: str
    before: str
    after: str
    start: int
    end: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}#{self.number}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def edits_of(path: str, source: bytes) -> list[Edit]:
    """All edits of a file, in the order of their places; none leaves the program the same."""
    lines = source.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    seen = set[tuple[int, int, str]]()
    found: list[Edit] = []
    numbers: Counter[int] = Counter()
    for scope, node, text in sorted(
        _Edits().of(ast.parse(source)), key=lambda entry: (entry[1].lineno, entry[1].col_offset)
    ):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        outcome = start, end, _meaning(text)
        if outcome in seen or outcome[2] == _meaning(ast.unparse(node)):
            continue
        seen.add(outcome)
        numbers[node.lineno] += 1
        changed = source[:start] + text.encode() + source[end:]
        first, last = node.lineno - 1, node.end_lineno
        after = changed[starts[first] : starts[last] + len(changed) - len(source)]
        found.append(
            Edit(
                path,
                bisect_right(starts, start),
                numbers[node.lineno],
                scope,
                b"".join(lines[first:last]).decode(),
                after.decode(),
                start,
                end,
                text,
            )
        )
    return found


def _meaning(text: str) -> str:
    return ast.dump(ast.parse(text))


Found = Iterator[tuple[str, ast.expr | ast.stmt, str]]
"""The scope of a node, the node, and the text that replaces it."""


class _Edits:
    """Walks a syntax tree, and skips what no test could miss: annotations, docstrings, messages,
    named constants, whose values are choices, and checks of invariants (asserts,
    `zip(strict=True)`, `check_integrity`)."""

    def of(self, tree: ast.Module) -> Found:
        yield from self._body(tree.body, "")

    def _body(self, body: list[ast.stmt], scope: str) -> Found:
        for statement in body:
            yield from self._statement(statement, scope, alone=len(body) == 1)

    def _statement(self, node: ast.stmt, scope: str, *, alone: bool) -> Found:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.name == "check_integrity":
                return
            inner = f"{scope}.{node.name}" if scope else node.name
            if isinstance(node, ast.FunctionDef):
                for default in [*node.args.defaults, *node.args.kw_defaults]:
                    yield from self._expression(default, inner)
            yield from self._body(node.body, inner)
            return
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom) or _type_checking(node):
            return
        if not scope and isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper():
            return
        if _may_be_dropped(node):
            yield scope, node, "pass"
        match node:
            case ast.Break():
                yield scope, node, "continue"
            case ast.Continue():
                yield scope, node, "break"
                yield scope, node, "pass"
            case ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
                wrong = _ARITHMETIC[type(op)]
                yield scope, node, f"{ast.unparse(node.target)} {wrong}= {ast.unparse(node.value)}"
            case ast.If():
                yield scope, node.test, f"not ({ast.unparse(node.test)})"
            case ast.Raise():
                return  # the rest is its message
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "targets", "target"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    yield from self._statement(child, scope, alone=len(value) == 1)
                elif isinstance(child, ast.ExceptHandler):
                    yield from self._body(child.body, scope)
                else:
                    yield from self._expression(child, scope)

    def _expression(self, node: object, scope: str) -> Found:
        if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr):
            return
        if isinstance(node, ast.expr):
            for text in _wrong(node):
                yield scope, node, text
        for child in _parts(node):
            yield from self._expression(child, scope)


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
        return  # a negative number is one number
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger."):
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.keyword) and child.arg == "strict"):
            yield child


def _may_be_dropped(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete() | ast.Raise():
            return not ast.unparse(node).startswith("logger.")
        case ast.Return():
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
    return False


def _type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _wrong(node: ast.expr) -> Iterator[str]:
    """What may stand wrongly in place of an expression."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield f"({_enclosed(left)} {_COMPARE[type(op)]} {_enclosed(right)})"
        case ast.Compare(left=left, ops=ops, comparators=rights):
            for i, op in enumerate(ops):
                signs = [_sign(other) for other in ops]
                signs[i] = _COMPARE[type(op)]
                pairs = zip(signs, rights, strict=True)
                rest = " ".join(f"{sign} {_enclosed(right)}" for sign, right in pairs)
                yield f"({_enclosed(left)} {rest})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield f"({_enclosed(left)} {_ARITHMETIC[type(op)]} {_enclosed(right)})"
        case ast.BoolOp(op=op, values=values):
            sign = " or " if isinstance(op, ast.And) else " and "
            yield f"({sign.join(map(_enclosed, values))})"
            for i in range(len(values)):
                same = " and " if isinstance(op, ast.And) else " or "
                yield f"({same.join(_enclosed(v) for j, v in enumerate(values) if j != i)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"bool({ast.unparse(operand)})"
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            yield from (f"(-{value + 1})", f"({1 - value})")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield f"({_enclosed(operand)})"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield f"({_enclosed(orelse)} if {_enclosed(test)} else {_enclosed(body)})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
            if value > 0:
                yield str(value - 1)
        case ast.Constant(value=float(value)):
            yield str(2 * value if value else 1.0)
        case ast.Call(func=func, args=args):
            yield from _wrong_call(func, args, node)
        case ast.Subscript(value=value, slice=ast.Slice() as bounds):
            yield from _wrong_bounds(value, bounds)
        case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
            yield from _wrong_filters(node)


def _wrong_call(func: ast.expr, args: list[ast.expr], node: ast.Call) -> Iterator[str]:
    name = func.id if isinstance(func, ast.Name) else getattr(func, "attr", "")
    rest = [_argument(arg) for arg in node.keywords]
    plain = [ast.unparse(arg) for arg in args]
    if name in _NAMES:
        called = ast.unparse(func).removesuffix(name) + _NAMES[name]
        yield f"{called}({', '.join(plain + rest)})"
    if name in _TRANSPARENT and len(args) == 1:
        yield f"({plain[0]})" if name == "abs" else f"list({plain[0]})"
    for i, arg in enumerate(args):
        wanted = getattr(arg, "attr", getattr(arg, "id", ""))
        if isinstance(arg, ast.BinOp) or _COUNT.match(wanted):
            more = [*plain[:i], f"({plain[i]}) + 1", *plain[i + 1 :]]
            yield f"{ast.unparse(func)}({', '.join(more + rest)})"


def _argument(arg: ast.keyword) -> str:
    return f"{arg.arg}={ast.unparse(arg.value)}" if arg.arg else f"**{ast.unparse(arg.value)}"


def _wrong_bounds(value: ast.expr, bounds: ast.Slice) -> Iterator[str]:
    """Slices that begin or end one too late; constants are edited for themselves."""
    low, high = (ast.unparse(b) if b else "" for b in (bounds.lower, bounds.upper))
    tail = f":{ast.unparse(bounds.step)}" if bounds.step else ""
    if bounds.lower is not None and not isinstance(bounds.lower, ast.Constant):
        yield f"{_enclosed(value)}[({low}) + 1:{high}{tail}]"
    if bounds.upper is not None and not isinstance(bounds.upper, ast.Constant):
        yield f"{_enclosed(value)}[{low}:({high}) + 1{tail}]"


def _wrong_filters(
    node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp,
) -> Iterator[str]:
    for generator in node.generators:
        for i, test in enumerate(generator.ifs):
            generator.ifs[i] = ast.UnaryOp(ast.Not(), test)
            yield ast.unparse(node)
            generator.ifs[i] = test


def _sign(op: ast.cmpop) -> str:
    return ast.unparse(ast.Compare(ast.Name("x"), [op], [ast.Name("x")])).strip("x ")


def _enclosed(node: ast.expr) -> str:
    text = ast.unparse(node)
    atomic = ast.Name | ast.Attribute | ast.Call | ast.Constant | ast.Subscript | ast.List
    return text if isinstance(node, atomic) else f"({text})"
