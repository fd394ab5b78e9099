"""Our modules as they read in SGLang's tree.

Imports name the modules' new places; the docstring no longer says where it goes; bare
calls into modules that have no place there (``seams.require_installed()``) are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import black
import isort
import libcst as cst
from libcst.helpers import get_full_name_for_node

from sglang_dsv4_nvfp4.intree import places

# SGLang's: isort with black's profile, and the formatter's default width.
LINE_LENGTH = 88


@functools.cache
def landed(ours: str) -> str:
    """The text of our module ``ours`` at its place in-tree.

    Raises:
        ValueError: it needs something that has no place there.
    """
    module = relocated(places.source(ours))
    text = isort.code(module.code, profile="black", known_first_party=["sglang"])
    text = black.format_str(text, mode=black.Mode(line_length=LINE_LENGTH))
    if places.OURS in text:
        raise ValueError(f"{ours} would still speak of {places.OURS} in-tree")
    return text


def relocated(source: str) -> cst.Module:
    """``source``, with in-tree names and nothing that has no place in-tree.

    Raises:
        ValueError: it needs something that has no place there.
    """
    return cst.parse_module(source).visit(_Relocation())


class _Relocation(cst.CSTTransformer):
    def __init__(self) -> None:
        # Names that stand for our modules without a place.
        self._left_out: set[str] = set()

    def leave_Module(
        self, original_node: cst.Module, updated_node: cst.Module
    ) -> cst.Module:
        first, *others = updated_node.body
        match first:
            case cst.SimpleStatementLine(
                body=[cst.Expr(value=cst.SimpleString() as docstring)]
            ):
                value = _without_place(docstring.value)
                first = first.with_deep_changes(docstring, value=value)
        updated_node = updated_node.with_changes(body=[first, *others])
        kept = sorted(self._left_out & used_names(updated_node))
        if kept:
            raise ValueError(f"{', '.join(kept)} has no place in-tree")
        return updated_node

    def leave_SimpleStatementLine(
        self,
        original_node: cst.SimpleStatementLine,
        updated_node: cst.SimpleStatementLine,
    ) -> cst.BaseStatement | cst.FlattenSentinel | cst.RemovalSentinel:
        match updated_node.body:
            case [cst.ImportFrom() as statement]:
                return self._moved(updated_node, statement)
            case [
                cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Name(value=name))))
            ] if (name in self._left_out):
                return cst.RemoveFromParent()
        return updated_node

    def _moved(
        self, line: cst.SimpleStatementLine, statement: cst.ImportFrom
    ) -> cst.BaseStatement | cst.FlattenSentinel | cst.RemovalSentinel:
        module = get_full_name_for_node(statement.module) if statement.module else ""
        if module.split(".")[0] != places.OURS:
            return line
        by_module: dict[str, list[str]] = {}
        renamed: list[cst.SimpleStatementLine] = []
        for alias in statement.names:
            home = self._home(module, alias.evaluated_name)
            if home is None:
                self._left_out.add(alias.evaluated_alias or alias.evaluated_name)
                continue
            new_module, name = home
            wanted = alias.evaluated_alias or alias.evaluated_name
            if name == wanted:
                by_module.setdefault(new_module, []).append(name)
            else:
                renamed.append(import_line(new_module, [f"{name} as {wanted}"]))
        lines = [
            *(import_line(module, names) for module, names in by_module.items()),
            *renamed,
        ]
        if not lines:
            return cst.RemoveFromParent()
        lines[0] = lines[0].with_changes(leading_lines=line.leading_lines)
        return cst.FlattenSentinel(lines)

    def _home(self, module: str, name: str) -> tuple[str, str] | None:
        """Where ``from module import name`` finds it in-tree; None: it has no place."""
        homes = places.homes()
        submodule = f"{module}.{name}"
        if submodule in homes:
            parent, _, leaf = homes[submodule].rpartition(".")
            return parent, leaf
        if places.is_ours(submodule):
            return None
        if module not in homes:
            raise ValueError(f"{submodule} has no place in-tree")
        return homes[module], name


def import_line(module: str, names: Sequence[str]) -> cst.SimpleStatementLine:
    """``from module import names``, as isort formats it."""
    statement = f"from {module} import {', '.join(sorted(names, key=str.lower))}\n"
    formatted = isort.code(statement, profile="black")
    return cst.ensure_type(cst.parse_statement(formatted), cst.SimpleStatementLine)


def used_names(node: cst.CSTNode) -> set[str]:
    """Names that ``node`` reads or binds: no attributes, keywords of calls or imports."""
    visitor = _Names()
    node.visit(visitor)
    return visitor.found


class _Names(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        self.found.add(node.value)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False


def _without_place(docstring: str) -> str:
    """A module's docstring, quotes included, without its last paragraph."""
    *paragraphs, last = docstring.removesuffix('"""').split("\n\n")
    if not last.startswith(("In-tree: ", "Not in-tree: ")):
        return docstring
    is_one_line = len(paragraphs) == 1 and "\n" not in paragraphs[0]
    return "\n\n".join(paragraphs) + ('"""' if is_one_line else '\n"""')
