"""Every text that a UserError can have, read out of the sources; and the page that lists them.

Prior art: the index of Rust's compiler errors, which is generated from the sources and fails to build without an entry.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from tests.syntax_trees import nodes, trees_of

PACKAGES = ("protocol", "models", "node", "bootstrap", "lab")
USAGE = 64


@dataclass(frozen=True, order=True)
class ErrorText:
    """`exit_code` 0: it is passed on from somewhere. `text` has … where something is filled in."""

    exit_code: int
    file: str
    text: str

    @property
    def code(self) -> str:
        return f"E{self.exit_code or 'nn'}-{self.file}"

    @property
    def cause(self) -> str:
        return self.text.rpartition("; ")[0] or self.text

    @property
    def next_step(self) -> str:
        """Empty when the text names none."""
        return self.text.rpartition("; ")[2] if "; " in self.text else ""


def error_texts() -> list[ErrorText]:
    trees = [(stem(Path(path), tree), tree) for package in PACKAGES for path, tree in trees_of(package).items()]
    numbers = {name: value for _, tree in trees for name, value in _constants(tree).items()}
    return sorted({text for file, tree in trees for text in texts_of(file, tree, numbers)})


def stem(path: Path, tree: ast.Module) -> str:
    """What the codes of a file end with: its `ERRORS`, else its name."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ERRORS":
            return str(ast.literal_eval(node.value))
    return path.stem


def texts_of(file: str, tree: ast.Module, imported: Mapping[str, int]) -> Iterator[ErrorText]:
    """Of `UserError(...)` and of classes of this file that derive from it. What is only passed on has no text. What is
    put together of parts has one, were it of parts alone, which a test refuses. `imported`: exit codes by name, for
    those that the file has no name of its own for."""
    names = {"UserError"} | {
        node.name
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "UserError" for base in node.bases)
    }
    if not any(_makes(node, names) for node in nodes(tree)):
        return
    numbers = {**imported, **_constants(tree)}
    for function in nodes(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            own = list(_own(function))
            known = _assigned(own)
            for node in own:
                if _makes(node, names):
                    text = _template(node.args[0], known) if node.args else ""
                    if text.strip("…"):
                        yield ErrorText(_number(node, numbers), file, text)


def _makes(node: ast.AST, names: set[str]) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _constants(tree: ast.Module) -> dict[str, int]:
    """Whole numbers that a file gives names to."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and isinstance(node.value.value, int)
    }


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function without those of functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _own(child)


def _assigned(own: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """Texts that are put together in a variable first."""
    return {
        target.id: node.value
        for node in own
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value, ast.JoinedStr | ast.Constant)
    }


def _template(text: ast.expr, known: dict[str, ast.expr]) -> str:
    if isinstance(text, ast.Name) and text.id in known:
        return _template(known[text.id], {})
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add):
        return _template(text.left, known) + _template(text.right, known)
    if isinstance(text, ast.Constant):
        return " ".join(str(text.value).split(" "))
    if isinstance(text, ast.JoinedStr):
        parts = [
            _template(part.value, known) if isinstance(part, ast.FormattedValue) and _is_text(part, known)
            else str(part.value) if isinstance(part, ast.Constant) else "…"
            for part in text.values
        ]  # fmt: skip
        return "".join(parts)
    return "…"


def _is_text(part: ast.FormattedValue, known: dict[str, ast.expr]) -> bool:
    return isinstance(part.value, ast.Name) and part.value.id in known


def _number(call: ast.Call, numbers: Mapping[str, int]) -> int:
    given = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "exit_code"), None)
    if given is None:
        return USAGE
    value = given.value if isinstance(given, ast.Constant) else numbers.get(ast.unparse(given))
    return value if isinstance(value, int) and 64 <= value <= 78 else 0


def rows_of(page: str) -> dict[tuple[str, str], str]:
    """(code, cause) → next step, as the page has them."""
    found = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "\0").strip("|").split("|")]
        if line.startswith("| `E") and len(cells) == 3:
            found[cells[0].strip("`"), cells[1].replace("\0", "\\|")] = cells[2].replace("\0", "\\|")
    return found


def table(texts: list[ErrorText], known: dict[tuple[str, str], str]) -> str:
    """Rows for the page; a next step that no text names is kept as the page has it."""
    lines = ["| code | what it says | what to do |", "|---|---|---|"]
    for text in texts:
        cause = _cell(text.cause)
        step = _cell(text.next_step) or known.get((text.code, cause), "")
        lines.append(f"| `{text.code}` | {cause} | {step} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
