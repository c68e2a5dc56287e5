"""Check who imports whom in src/quire, and the sizes of things, by reading the syntax trees.

    python tools/layer_lint.py [package directory]

The tables below are the law; everything after them only enforces it. Imports under
`if TYPE_CHECKING:` are exempt, imports inside functions are not. Violations print as
`file:line: message`, and the exit status tells whether there were any. Sizes and their exceptions
are in `size_lint.py`.
"""

import ast
import sys
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tools.size_lint import too_long, too_many_files

PACKAGE = "quire"

# A room imports itself and the rooms of earlier levels; rooms of one level do not see each other.
LEVELS: list[set[str]] = [
    {"system"},
    {"core"},
    {"kv", "ops", "parallel", "checkpoint"},
    {"text"},
    {"scheduler", "quant", "routing"},
    {"layers"},
    {"lora", "sampling"},
    {"models"},
    {"runner"},
    {"spec"},
    {"profile"},
    {"executor"},
    {"resolve"},
    {"engine"},
    {"metrics"},
    {"frontend"},
    {"simulate"},
    {"explain"},
    {"server"},
    {"bench"},
    {"tune", "quantize"},
    {"cli"},
    {"ray"},
]

# Tools see Quire as a user does. A module's own entry adds to its room's; it holds below it, too.
_PUBLIC = {
    "system", "core", "checkpoint", "text", "models.registry", "quant.names",
    "frontend.llm", "frontend.async_llm", "metrics.stats", "metrics.times",
}  # fmt: skip
ONLY_FROM: dict[str, set[str]] = {
    "bench": _PUBLIC | {"resolve", "profile", "explain"},
    "bench.kernels": {"ops", "models.layout", "models.specs"},
    "bench.peers.torch_calls": {"ops"},
    "bench.hop": {"parallel"},
    "bench.engine": {"models.memory"},
    "bench.floor": {"models.memory"},
    "bench.adapters": {"models.adapters"},
    "tune": _PUBLIC | {"resolve", "explain", "bench", "simulate"},
    "tune.memory": {"executor.memory", "models.memory"},
    "tune.kernels": {"ops"},
    # The simulator runs the real scheduler and engine core over a modelled executor.
    "simulate": _PUBLIC
    | {"kv", "scheduler", "routing", "models.cost", "models.memory", "engine.core", "resolve"}
    | {"models.weights.shares", "executor.base", "executor.memory", "executor.uniproc"},
}

# vLLM's import paths: they give names of any room to users, and nobody in the package imports them.
ALIASES = {
    "engine.arg_utils", "engine.async_llm_engine", "engine.llm_engine",
    "entrypoints", "inputs", "logprobs", "outputs", "pooling_params", "sampling_params",
    "utils", "v1",
}  # fmt: skip

# The only importers of torch: its providers of ops, the profilers of torch and CUDA, and engines to
# compare with.
TORCH_OWNERS = {
    "ops.torch_ops",
    "ops.triton",
    "profile.torch_profiler",
    "profile.cuda_profiler",
    "bench.peers",
}
# Rooms that never load torch, at any depth of nesting.
TORCH_FREE = {
    "system",
    "core",
    "metrics",
    "kv",
    "scheduler",
    "routing",
    "checkpoint",
    "text",
    "explain",
    "server",
    "cli",
}
# No module of these rooms loads torch when it is imported, except on TORCH_SIDE: the CPU path works
# without torch.
TORCH_FREE_AT_IMPORT = {room for rooms in LEVELS for room in rooms} - TORCH_FREE
TORCH_SIDE = TORCH_OWNERS | {"models.weights.host_offload"}
# Importing one of these loads torch.
TORCH_MODULES = {"torch", "triton", "transformers", "safetensors.torch"}

# Who alone may import a module.
OWNERS: dict[str, set[str]] = {
    "quire._native": {"ops", "spec", "text"},
    "triton": {"ops.triton"},
    "ray": {"ray"},
    "dataclasses.dataclass": {"bench.peers"},  # others: the cheap one of `system.records`
}
# Who alone may touch the environment.
ENVIRONMENT_OWNER = "system.env"
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


@dataclass(frozen=True)
class Import:
    """One imported module; `at_import` tells whether merely loading the importer loads it."""

    target: str
    line: int
    at_import: bool


@dataclass(frozen=True)
class Violation:
    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class Module:
    """One source file: its name without the package ("kv.manager"; "" for the package itself)."""

    def __init__(self, path: Path, root: Path) -> None:
        parts = path.relative_to(root).with_suffix("").parts
        self.path = path
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.room = self.name.partition(".")[0]
        self.tree = ast.parse(path.read_text(encoding="utf-8"), str(path))

    @cached_property
    def imports(self) -> list[Import]:
        return list(self._imports(self.tree, at_import=True))

    def _imports(self, node: ast.AST, at_import: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            for statement in node.orelse:
                yield from self._imports(statement, at_import)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_import)
        elif isinstance(node, ast.ImportFrom):
            source = self._absolute(node)
            # `from quire import kv` names a room, and `from quire.kv import manager` a module.
            for alias in node.names:
                yield Import(f"{source}.{alias.name}", node.lineno, at_import)
        elif isinstance(node, ast.Call) and _called_name(node) in {"import_module", "__import__"}:
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield Import(argument.value, node.lineno, at_import)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from self._imports(child, at_import and not inside)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        here = [PACKAGE, *(self.name.split(".") if self.name else [])]
        up = node.level - 1 if self.is_package else node.level
        return ".".join([*here[: len(here) - up], *([node.module] if node.module else [])])

    @cached_property
    def environment_uses(self) -> list[int]:
        """Lines that read or write the environment."""
        names = {"os"}
        lines: list[int] = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                names |= {a.asname for a in node.names if a.name == "os" and a.asname}
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                lines += [node.lineno for a in node.names if a.name in ENVIRONMENT]
        for node in ast.walk(self.tree):
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=attr):
                    if name in names and attr in ENVIRONMENT:
                        lines.append(node.lineno)
        return sorted(lines)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _called_name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _reachable(start: str, edges: dict[str, dict[str, int]]) -> set[str]:
    """What `start` imports, and what that imports, and so on."""
    found: set[str] = set()
    waiting = deque(edges[start])
    while waiting:
        name = waiting.popleft()
        if name not in found:
            found.add(name)
            waiting.extend(edges[name])
    return found


def _within(name: str, prefixes: set[str]) -> bool:
    """Whether `name` is one of the dotted prefixes or lies below one."""
    return any(name == p or name.startswith(f"{p}.") for p in prefixes)


class Lint:
    """All modules of a package directory, and the rules applied to them."""

    def __init__(self, root: Path) -> None:
        modules = [Module(path, root) for path in sorted(root.rglob("*.py"))]
        self._modules = {m.name: m for m in modules}
        self._level = {room: i for i, rooms in enumerate(LEVELS) for room in rooms}

    def violations(self) -> list[Violation]:
        found = [
            Violation(module.path, line, message)
            for module in self._modules.values()
            for line, message in self._check(module)
        ]
        found += [*self._cycles(), *self._sizes()]
        return sorted(set(found), key=lambda v: (str(v.path), v.line, v.message))

    def _sizes(self) -> Iterator[Violation]:
        files: Counter[str] = Counter()
        folders: dict[str, Path] = {}
        for module in self._modules.values():
            for line, message in too_long(module.name, module.tree):
                yield Violation(module.path, line, message)
            if not module.is_package:
                folder = module.name.rpartition(".")[0]
                files[folder] += 1
                folders[folder] = module.path.parent
        for path, message in too_many_files(folders, files):
            yield Violation(path, 1, message)

    def _cycles(self) -> Iterator[Violation]:
        """Modules that import each other, also where the imports are inside functions."""
        lines: dict[str, dict[str, int]] = {name: {} for name in self._modules}
        for module in self._modules.values():
            for imported in module.imports:
                target = self._resolve(imported.target)
                if target in self._modules and target not in (module.name, None):
                    lines[module.name].setdefault(str(target), imported.line)
        reached = {name: _reachable(name, lines) for name in lines}
        for name, targets in lines.items():
            for target, line in targets.items():
                if name in reached[target]:
                    message = f"{name} and {target} import each other"
                    yield Violation(self._modules[name].path, line, message)

    def _check(self, module: Module) -> Iterator[tuple[int, str]]:
        known = module.room in self._level or _within(module.name, ALIASES)
        if not known and module.name not in {"", "__main__"}:
            yield 1, f"{module.room!r} is in no level of LEVELS in tools/layer_lint.py"
            return
        if module.name != ENVIRONMENT_OWNER:
            for line in module.environment_uses:
                yield line, f"only {ENVIRONMENT_OWNER} touches the environment"
        for imported in module.imports:
            yield from ((imported.line, m) for m in self._check_owner(module, imported))
            yield from ((imported.line, m) for m in self._check_layer(module, imported))
            yield from ((imported.line, m) for m in self._check_torch(module, imported))

    def _check_owner(self, module: Module, imported: Import) -> Iterator[str]:
        for name, owners in OWNERS.items():
            if _within(imported.target, {name}) and not _within(module.name, owners):
                yield f"only {', '.join(sorted(owners))} may import {name}"

    def _check_layer(self, module: Module, imported: Import) -> Iterator[str]:
        target = self._resolve(imported.target)
        if target is None:
            return
        room = target.partition(".")[0]
        if _within(module.name, ALIASES):
            return
        if _within(target, ALIASES):
            yield f"{target} is for users; import from the room that defines it"
            return
        if module.room not in self._level:
            return
        if room in {module.room, "", "_native", "__version__"}:
            return
        if room not in self._level:
            yield f"import {room!r} from the room that defines it"
        elif self._level[room] >= self._level[module.room]:
            yield f"{module.room} must not import {room}, which is not to its left"
        elif module.room in ONLY_FROM:
            allowed = {
                t for name in ONLY_FROM if _within(module.name, {name}) for t in ONLY_FROM[name]
            }
            if not _within(target, allowed):
                yield f"{module.name} imports {target}, but only {', '.join(sorted(allowed))}"

    def _check_torch(self, module: Module, imported: Import) -> Iterator[str]:
        free = module.room in TORCH_FREE
        free_at_import = module.room in TORCH_FREE_AT_IMPORT and not _within(
            module.name, TORCH_SIDE
        )
        # A command may start an engine in its own process, so its functions may load the engine.
        follow = imported.at_import or (free and module.room != "cli")
        direct = _within(imported.target, TORCH_MODULES - {"triton"})
        if direct and not free and not _within(module.name, TORCH_OWNERS):
            yield f"{module.name} must not import {imported.target}; see TORCH_OWNERS"
            return
        if not (free and direct) and not (follow and (free or free_at_import)):
            return
        chain = self._path_to_torch(imported.target)
        if chain:
            yield f"{module.name} must not load torch: {' -> '.join(chain)}"

    def _path_to_torch(self, target: str) -> list[str]:
        """The modules through which importing `target` loads torch; empty if it does not."""
        if _within(target, TORCH_MODULES):
            return [target.partition(".")[0]]
        towards = self._towards_torch
        nearest = min(
            filter(towards.get, self._run_by(target)), key=list(towards).index, default=""
        )
        return [f"{PACKAGE}.{nearest}", *self._path_to_torch(towards[nearest])] if nearest else []

    @cached_property
    def _towards_torch(self) -> dict[str, str]:
        """Module that loads torch at import → the import that does; the nearest ones first."""
        importers: dict[str, list[tuple[str, str]]] = {}
        for module in self._modules.values():
            for imported in module.imports:
                if imported.at_import:
                    torch = _within(imported.target, TORCH_MODULES)
                    for name in ["torch"] if torch else self._run_by(imported.target):
                        importers.setdefault(name, []).append((module.name, imported.target))
        towards: dict[str, str] = {}
        reached = deque(["torch"])
        while reached:
            for name, target in importers.get(reached.popleft(), ()):
                if name not in towards:
                    towards[name] = target
                    reached.append(name)
        return towards

    def _run_by(self, target: str) -> list[str]:
        """The modules of the package that importing `target` runs: of a.b.c, a and a.b first."""
        name = self._resolve(target)
        parts = name.split(".") if name else []
        prefixes = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        return [prefix for prefix in prefixes if prefix in self._modules]

    def _resolve(self, target: str) -> str | None:
        """The module of the package that an import names, without the package; None if foreign."""
        head, _, name = target.partition(".")
        if head != PACKAGE:
            return None
        parent = name.rpartition(".")[0]
        # `from quire.kv.manager import Manager` names an object: its module is what counts.
        return parent if name not in self._modules and parent in self._modules and parent else name


def check(root: Path) -> list[Violation]:
    """Every violation in the package whose directory is `root`."""
    return Lint(root).violations()


def main(arguments: list[str]) -> int:
    default = Path(__file__).resolve().parent.parent / "src" / PACKAGE
    violations = check(Path(arguments[0]) if arguments else default)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
