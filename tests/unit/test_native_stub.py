"""`_native.pyi` declares what the compiled module has: names, and the parameters of functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from quire import _native
from quire.ops import interface

STUB = ast.parse((Path(interface.__file__).parent.parent / "_native.pyi").read_text())
# The stub says lists and tuples where the module takes any sequence.
ALIKE = dict.fromkeys(("list", "tuple", "Sequence"), "sequence")

Parameters = list[str | None]


def declared(name: str, body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        match node:
            case ast.ClassDef(name=each, body=inner):
                yield name + each, node
                yield from declared(f"{each}.", inner)
            case ast.FunctionDef(name=each) | ast.AnnAssign(target=ast.Name(id=each)):
                yield name + each, node


def kinds(function: ast.FunctionDef) -> Parameters:
    """Return the outer type of each parameter and of the result; None for `self`."""
    arguments = [each.annotation for each in (*function.args.posonlyargs, *function.args.args)]
    return [None if each is None else outer(each) for each in (*arguments, function.returns)]


def outer(kind: ast.expr) -> str:
    match kind:
        case ast.BinOp(left=left, right=right):
            return f"{outer(left)} | {outer(right)}"
        case ast.Subscript(value=value):
            return outer(value)
    name = ast.unparse(kind).rpartition(".")[2]
    return ALIKE.get(name, name)


def compiled(function: object) -> list[Parameters]:
    """Return the kinds of each overload."""
    function = function.fget if isinstance(function, property) else function
    found = []
    for text, *_ in function.__nb_signature__:  # type: ignore[attr-defined]
        # Defaults are numbers behind a backslash, and a property's function has no name.
        code = re.sub(r" = \\\d+", " = ...", text).replace("def (", "def get(")
        [node] = ast.parse(f"{code}: ...").body
        assert isinstance(node, ast.FunctionDef)
        found.append(kinds(node))
    return found


def fits(stated: Parameters, there: Parameters) -> bool:
    """Return whether a declaration is an overload's, or narrower where the module says object."""
    return len(stated) == len(there) and all(
        wanted in (each, "object") for each, wanted in zip(stated, there, strict=True)
    )


def member(name: str) -> object:
    owner, _, last = name.rpartition(".")
    return vars(getattr(_native, owner) if owner else _native)[last]


def test_every_name_is_declared_and_every_declared_name_exists() -> None:
    there = {name for name in vars(_native) if not name.startswith("__")}
    for owner in [name for name in there if isinstance(getattr(_native, name), type)]:
        members = vars(getattr(_native, owner))
        there |= {f"{owner}.{name}" for name in members if not name.startswith("__")}
    stated = {name for name, _ in declared("", STUB.body) if not name.endswith("__")}
    assert stated == there


def test_parameters_are_those_of_the_module() -> None:
    functions = [node for node in declared("", STUB.body) if isinstance(node[1], ast.FunctionDef)]
    assert len(functions) > 80
    for name, node in functions:
        assert isinstance(node, ast.FunctionDef)
        stated, there = kinds(node), compiled(member(name))
        assert any(fits(stated, overload) for overload in there), (name, stated, there)
