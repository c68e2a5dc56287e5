"""Size limits of rooms, classes and functions, and the exceptions to them.

`tools/layer_lint.py` applies them. An exception is a limit of its own: what it names must not grow,
and the exception goes once the common limit holds.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

MAX_FILES = 25
MAX_CLASS_LINES = 300
MAX_FUNCTION_LINES = 60

LIKE_THINGS = {"models.architectures": "one file per architecture"}
"""Rooms with more than `MAX_FILES` files, and what these have in common."""
TABLES = {"cli.serve.add_arguments", "bench.serving.serve_flags._add_dataset"}
"""Functions that are tables: one entry per flag, or per operation."""
EXCEPTIONS: dict[str, int] = {}
"""Lines of classes and functions that are still too long."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def too_many_files(folders: Mapping[str, Path], files: Counter[str]) -> Iterator[tuple[Path, str]]:
    """Yield the folders with too many files, by dotted name."""
    for name, count in files.items():
        if count > MAX_FILES and name not in LIKE_THINGS:
            yield folders[name], f"{name} has {count} files; at most {MAX_FILES} lie flat"


def too_long(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line of each definition that is too long, or whose exception is not needed."""
    for name, node in _definitions(module, tree):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        limit = MAX_CLASS_LINES if isinstance(node, ast.ClassDef) else MAX_FUNCTION_LINES
        allowed = EXCEPTIONS.get(name, limit)
        if name in TABLES:
            continue
        if lines > allowed:
            yield node.lineno, f"{name} has {lines} lines; at most {allowed} are allowed"
        elif name in EXCEPTIONS and lines <= limit:
            yield node.lineno, f"{name} needs no exception in tools/size_lint.py any more"


def _definitions(prefix: str, tree: ast.AST) -> Iterator[tuple[str, Definition]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            name = f"{prefix}.{node.name}"
            yield name, node
            yield from _definitions(name, node)
        else:
            yield from _definitions(prefix, node)
