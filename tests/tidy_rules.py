"""The rules that `test_tidy.py` holds the tree to: each takes a file's path and syntax tree and yields what breaks it.

Paths are relative to the repository, with forward slashes. Prior art: TigerBeetle's tidy.zig.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping

from tests import tidy_arrows as arrows
from tests.syntax_trees import nodes

PACKAGES = tuple(arrows.PACKAGES)
FUNCTION_LINES_MAX = 80
COMPUTE = re.compile(r"node/compute/(?!client\.)\w+\.py|node/export/generate\.py")
"""What runs in the compute process, and its configuration; `client.py` is the node's side of it."""
COMMAND_LINE = re.compile(r"node/cli/\w*\.py")
BOOTSTRAP_MUST_NOT = re.compile(r"ftnode\.node\.(driver|life|compute|cli)\b")
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
SHOWN = frozenset({"handle", "deadline", "picture"})
"""What a participant is to those outside of the core."""
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
UNPACKERS = ("unpack", "unpackb", "load", "loads", "Unpacker")
UNPACKING = frozenset({
    "protocol/wire/decoder.py", "node/compute/client.py", "node/compute/process.py", "node/directory/link.py",
    "node/directory/process.py", "lab/swarms/template.py", "lab/swarms/template_process.py",
})  # fmt: skip
"""The decoder of bytes from others, and the pipes between a process of ours and its own children."""
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
    for node in nodes(tree):
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
    allowed = arrows.PACKAGES[package] | ({"bootstrap"} if COMMAND_LINE.fullmatch(path) else set())
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


def room_of(path: str) -> str:
    """The room of a file, or the name of a file that stands at the top of its package."""
    return path.removesuffix(".py").split("/")[1]


def rooms_import_downwards(path: str, tree: ast.Module) -> Iterator[str]:
    """Within a package, a room imports from itself and from rooms that stand before it in `tidy_arrows.ROOMS`."""
    package = package_of(path)
    rooms = arrows.ROOMS.get(package)
    if rooms is None or room_of(path) == "__init__":
        return
    room = room_of(path)
    if room not in rooms:
        yield f"{path}: {room} is no room of {package}; see tests/tidy_arrows.py"
        return
    for name, line in imports(tree):
        parts = name.split(".")
        if parts[:2] != ["ftnode", package] or len(parts) < 3 or parts[2] not in rooms:
            continue
        if rooms.index(parts[2]) > rooms.index(room):
            yield f"{path}:{line}: {room} must not import {package}/{parts[2]}, which stands above it"


def tests_mirror_the_rooms(path: str, tree: ast.Module) -> Iterator[str]:
    """tests/node/links/test_x.py tests the room node/links; what a whole package needs stands at the top."""
    parts = path.split("/")
    rooms = arrows.ROOMS.get(parts[1]) if parts[0] == "tests" and len(parts) > 3 else None
    if rooms is not None and parts[2] not in rooms:
        yield f"{path}: {parts[1]} has no room {parts[2]}"


def import_circles(files: Mapping[str, ast.Module]) -> list[list[str]]:
    """Groups of files that import each other around a circle (strongly connected components, Tarjan 1972)."""
    modules = {"ftnode." + path.removesuffix(".py").replace("/", "."): path for path in files}
    needs = {path: {modules[name] for name, _ in imports(tree) if name in modules} for path, tree in files.items()}
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles = []

    def visit(path: str) -> None:
        order[path] = lowest[path] = len(order)
        stack.append(path)
        for needed in sorted(needs[path] - {path}):
            if needed not in order:
                visit(needed)
            if needed in stack:
                lowest[path] = min(lowest[path], lowest[needed])
        if lowest[path] == order[path]:
            circle = stack[stack.index(path) :]
            del stack[stack.index(path) :]
            if len(circle) > 1:
                circles.append(sorted(circle))

    for path in sorted(needs):
        if path not in order:
            visit(path)
    return circles


def core_is_pure(path: str, tree: ast.Module) -> Iterator[str]:
    if package_of(path) != "protocol":
        return
    for name, line in imports(tree):
        top = name.split(".")[0]
        if top in IMPURE or top not in sys.stdlib_module_names | {"ftnode", "msgpack"}:
            yield f"{path}:{line}: the core must not import {top}"
        if name.startswith("random.") and name != "random.Random":
            yield f"{path}:{line}: chance is an argument; {name} is global"
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "random" and node.attr != "Random":
                yield f"{path}:{node.lineno}: chance is an argument; random.{node.attr} is global"
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "print", "input")
        ):
            yield f"{path}:{node.lineno}: the core does no I/O, but calls {node.func.id}"


def only_its_picture_is_read(path: str, tree: ast.Module) -> Iterator[str]:
    """Outside of the core, nothing of a participant is used but its door, its deadline and its picture."""
    if package_of(path) not in ("node", "bootstrap", "lab"):
        return
    named = participants_of(tree)
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and _named(node.value) in named and node.attr not in SHOWN:
            yield f"{path}:{node.lineno}: {ast.unparse(node)}: others read only {', '.join(sorted(SHOWN))} of the core"
        elif isinstance(node, ast.Call) and _reads_any(node.func) and _named(node.args[0]) in named:
            yield f"{path}:{node.lineno}: {ast.unparse(node)} looks into the core"


def participants_of(tree: ast.Module) -> set[str]:
    """Names, of variables and attributes, that stand for a participant: by custom, by annotation, or by assignment."""
    named = {"participant", "_participant", "core", "_core"}
    bound: list[tuple[ast.expr, ast.expr]] = []
    for node in nodes(tree):
        if isinstance(node, ast.arg) and _is_participant(node.annotation):
            named.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and _is_participant(node.annotation):
            named.add(_named(node.target))
        elif isinstance(node, ast.NamedExpr):
            bound.append((node.target, node.value))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                bound.extend(zip(target.elts, node.value.elts) if pairs else [(target, node.value)])
    while more := {_named(target) for target, value in bound if _named(value) in named} - named - {""}:
        named |= more
    return named


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
    for node in nodes(tree):
        if isinstance(node, ast.ExceptHandler) and _catches_all(node.type) and not _logs_or_raises(node):
            if kept and any(isinstance(inner, ast.Name) and inner.id == node.name for inner in ast.walk(node)):
                continue
            yield f"{path}:{node.lineno}: catches everything and says nothing"


def tests_do_not_sleep(path: str, tree: ast.Module) -> Iterator[str]:
    if package_of(path) != "tests" or path.startswith("tests/swarm/"):
        return
    for node in nodes(tree):
        if isinstance(node, ast.Call) and _called(node) == "sleep" and not _is_zero(node.args):
            yield f"{path}:{node.lineno}: sleeps; wait for what you wait for"


def functions_fit_on_a_screen(path: str, tree: ast.Module) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{path}:{node.lineno}: {node.name} has {length} lines, more than {FUNCTION_LINES_MAX}"


def foreign_bytes_have_one_decoder(path: str, tree: ast.Module) -> Iterator[str]:
    """msgpack unpacks in the decoder, and where a process of ours reads what its own child or parent wrote."""
    if package_of(path) not in PACKAGES or path in UNPACKING:
        return
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and node.attr in UNPACKERS and _named(node.value) in ("msgpack", "fallback"):
            yield f"{path}:{node.lineno}: unpacks msgpack by itself; protocol/wire/decoder.py reads bytes of others"
    for name, line in imports(tree):
        if re.fullmatch(r"msgpack\.(\w+\.)*(" + "|".join(UNPACKERS) + ")", name) or name.startswith("msgpack.fallback"):
            yield f"{path}:{line}: imports {name}; protocol/wire/decoder.py reads bytes of others"


def names_are_of_the_domain(path: str, tree: ast.Module) -> Iterator[str]:
    for part in re.split(r"[/._]", path.removesuffix(".py")):
        if part in BANNED_STEMS:
            yield f"{path}: {part!r} names no concept"
    for node in nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and BANNED_NAME.search(node.name):
            yield f"{path}:{node.lineno}: {node.name} names no concept"


RULES: tuple[Rule, ...] = (
    packages_import_downwards,
    rooms_import_downwards,
    tests_mirror_the_rooms,
    core_is_pure,
    only_its_picture_is_read,
    errors_are_not_swallowed,
    tests_do_not_sleep,
    functions_fit_on_a_screen,
    foreign_bytes_have_one_decoder,
    names_are_of_the_domain,
)


def _catches_all(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or (isinstance(one, ast.Name) and one.id in ("Exception", "BaseException")) for one in kinds)


def _logs_or_raises(handler: ast.ExceptHandler) -> bool:
    for node in ast.walk(handler):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Call) and _called(node) in LOG_METHODS:
            return True
    return False


def _named(value: ast.expr) -> str:
    """The last name of `a.b.c`, and of what a participant is made by."""
    if isinstance(value, ast.Attribute):
        return value.attr
    if isinstance(value, ast.Call) and _called(value) == "Participant":
        return "participant"
    return value.id if isinstance(value, ast.Name) else ""


def _is_participant(annotation: ast.expr | None) -> bool:
    return annotation is not None and "Participant" in re.findall(r"\w+", ast.unparse(annotation))


def _reads_any(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id in ("getattr", "vars")


def _called(node: ast.Call) -> str:
    """The last name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_zero(arguments: list[ast.expr]) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and arguments[0].value == 0
