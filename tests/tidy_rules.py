"""The rules that `test_tidy.py` holds the tree to: each takes a file's path and syntax tree and yields what breaks it.

Paths are relative to the repository, with forward slashes. Prior art: TigerBeetle's tidy.zig.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator

PACKAGES = ("protocol", "models", "node", "bootstrap", "lab")
LINES_MAX = 400
FUNCTION_LINES_MAX = 80
COMPUTE = re.compile(r"node/compute_\w+\.py")
"""What runs in the compute process, and its configuration; `node/compute.py` is the node's side of it."""
COMMAND_LINE = re.compile(r"node/cli\w*\.py")

MAY_IMPORT = {
    "protocol": {"protocol"},
    "models": {"models"},
    "node": {"node", "protocol", "models"},
    "bootstrap": {"bootstrap", "node", "protocol"},
    "lab": set(PACKAGES),
}
BOOTSTRAP_MUST_NOT = re.compile(r"ftnode\.node\.(daemon|driver|compute|cli)\w*")
"""A meeting point trains nothing."""

IMPURE = frozenset({
    "time", "datetime", "logging", "os", "io", "pathlib", "socket", "select", "selectors", "subprocess",
    "threading", "multiprocessing", "asyncio", "secrets", "uuid", "shutil", "tempfile", "signal", "ctypes",
    "mmap", "urllib", "http", "sqlite3", "concurrent", "platform", "builtins", "importlib",
})  # fmt: skip
"""Of the standard library, what has no place in the core: I/O, clocks, chance that nobody passed in, the machine."""
BANNED_STEMS = frozenset(
    {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers", "tools", "stuff"}
)
BANNED_NAME = re.compile(r"[A-Z]\w*Manager$|Manager[A-Z]|[A-Za-z]Utils?$|[A-Za-z]Helpers?$|(^|_)(utils?|helpers?)$")
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
PROJECT_ONLY = re.compile(
    r"(?<![\w.~-])/(?:work|root|home/\w+)/|/tmp/[a-z]+/|py"
    + r"pi\.(?:org|python)|files\.python"
    + r"hosted|\bFIX"
    + r"ME\b"
)
"""Places of one machine, hosts of package indexes, unfinished business."""

Rule = Callable[[str, ast.Module], Iterator[str]]


def package_of(path: str) -> str:
    return path.split("/", 1)[0]


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every imported module, `from a import b` as a.b as well as a, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base, node.lineno
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def packages_import_downwards(path: str, tree: ast.Module) -> Iterator[str]:
    package = package_of(path)
    if package not in PACKAGES:
        return
    allowed = MAY_IMPORT[package] | ({"bootstrap"} if COMMAND_LINE.fullmatch(path) else set())
    for name, line in imports(tree):
        parts = name.split(".")
        if name.startswith("."):
            yield f"{path}:{line}: relative import; write the whole name"
        elif parts[0] == "ftnode" and len(parts) > 1 and parts[1] not in allowed:
            yield f"{path}:{line}: {package} must not import ftnode.{parts[1]}"
        elif parts[0] in PACKAGES:
            yield f"{path}:{line}: {parts[0]} is imported as ftnode.{parts[0]}"
        elif package == "bootstrap" and BOOTSTRAP_MUST_NOT.match(name):
            yield f"{path}:{line}: a meeting point must not import {name}"


def core_is_pure(path: str, tree: ast.Module) -> Iterator[str]:
    if package_of(path) != "protocol":
        return
    for name, line in imports(tree):
        top = name.split(".")[0]
        if top in IMPURE or top not in sys.stdlib_module_names | {"ftnode", "msgpack"}:
            yield f"{path}:{line}: the core must not import {top}"
        if name.startswith("random.") and name != "random.Random":
            yield f"{path}:{line}: chance is an argument; {name} is global"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "random" and node.attr != "Random":
                yield f"{path}:{node.lineno}: chance is an argument; random.{node.attr} is global"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "print", "input")
        ):
            yield f"{path}:{node.lineno}: the core does no I/O, but calls {node.func.id}"


def torch_outside_compute(files: dict[str, ast.Module]) -> list[str]:
    """Files of node and bootstrap, compute's own apart, that load torch directly or through files of ours."""
    ours = {"ftnode." + path.removesuffix(".py").replace("/", "."): path for path in files}
    needs = {path: {name for name, _ in imports(tree)} for path, tree in files.items()}
    loads = {path for path, names in needs.items() if any(name.split(".")[0] == "torch" for name in names)}
    while more := {path for path, names in needs.items() if loads & {ours.get(name) for name in names}} - loads:
        loads |= more
    return sorted(p for p in loads if package_of(p) in ("node", "bootstrap") and not COMPUTE.fullmatch(p))


def errors_are_not_swallowed(path: str, tree: ast.Module) -> Iterator[str]:
    """Whoever catches everything logs it or raises again; a test may keep it as a finding."""
    kept = package_of(path) == "tests"
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and _catches_all(node.type) and not _logs_or_raises(node):
            if kept and any(isinstance(inner, ast.Name) and inner.id == node.name for inner in ast.walk(node)):
                continue
            yield f"{path}:{node.lineno}: catches everything and says nothing"


def tests_do_not_sleep(path: str, tree: ast.Module) -> Iterator[str]:
    if package_of(path) != "tests" or path.startswith("tests/swarm/"):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node).split(".")[-1] == "sleep" and not _is_zero(node.args):
            yield f"{path}:{node.lineno}: sleeps; wait for what you wait for"


def files_hold_one_concept(path: str, tree: ast.Module) -> Iterator[str]:
    ends = [node.end_lineno or 0 for node in tree.body]
    if ends and max(ends) > LINES_MAX:
        yield f"{path}: {max(ends)} lines are more than {LINES_MAX}; there are two concepts in it"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines, more than {FUNCTION_LINES_MAX}"


def names_are_of_the_domain(path: str, tree: ast.Module) -> Iterator[str]:
    for part in re.split(r"[/._]", path.removesuffix(".py")):
        if part in BANNED_STEMS:
            yield f"{path}: {part!r} names no concept"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and BANNED_NAME.search(node.name):
            yield f"{path}:{node.lineno}: {node.name} names no concept"


RULES: tuple[Rule, ...] = (
    packages_import_downwards,
    core_is_pure,
    errors_are_not_swallowed,
    tests_do_not_sleep,
    files_hold_one_concept,
    names_are_of_the_domain,
)


def _catches_all(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or (isinstance(one, ast.Name) and one.id in ("Exception", "BaseException")) for one in kinds)


def _logs_or_raises(handler: ast.ExceptHandler) -> bool:
    for node in ast.walk(handler):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Call) and _called(node).split(".")[-1] in LOG_METHODS:
            return True
    return False


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def _is_zero(arguments: list[ast.expr]) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and arguments[0].value == 0
