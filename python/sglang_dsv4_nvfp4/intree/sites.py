"""Places in classes and functions, found by names, and statements put there or taken away.

Nothing else of the file changes: libcst keeps every byte that it is not asked to touch.
"""

from __future__ import annotations

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import black
import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from sglang_dsv4_nvfp4.intree.landing import LINE_LENGTH

_Statements = Sequence[cst.BaseStatement]


class AnchorMissing(ValueError):
    """A name that a site is found by is not in the file."""


@dataclass(frozen=True)
class Site(ABC):
    """Statements at a place in a class or a function.

    path: names of the classes and functions around it, outermost first.
    code: the statements, not indented.
    """

    path: tuple[str, ...]
    code: str

    def insert(self, module: cst.Module) -> cst.Module:
        """``module`` with the statements at this site, once.

        Raises:
            AnchorMissing: naming what is not there.
        """
        insertion = _Insertion(self)
        inserted = module.visit(insertion)
        if not insertion.was_there:
            raise AnchorMissing(f"no {self.described()}")
        return inserted

    def remove(self, module: cst.Module) -> cst.Module:
        """``module`` without them."""
        return module.visit(_Removal(self))

    def statements(self) -> list[cst.BaseStatement]:
        """The code, broken where a line is too long at its depth."""
        mode = black.Mode(line_length=LINE_LENGTH - 4 * self.depth())
        formatted = black.format_str(self.code, mode=mode)
        # A comment at the very start would go to the module, not to its statement.
        _, *statements = cst.parse_module("pass\n" + formatted).body
        return statements

    def depth(self) -> int:
        """How many times the statements are indented."""
        return len(self.path)

    def described(self) -> str:
        """What has to be in the file for the site to be found."""
        return ".".join(self.path)

    def names(self) -> set[str]:
        """Names that the statements bring in: imported, or assigned in a class."""
        module = cst.parse_module(self.code)
        imported = m.findall(module, m.ImportAlias())
        return {alias.evaluated_name for alias in imported}

    def missing_parameters(self, owner: cst.FunctionDef | cst.ClassDef) -> set[str]:
        """Parameters that the statements use and that ``owner`` does not take."""
        return set()

    @abstractmethod
    def position(self, block: _Statements, is_whole: bool) -> int | None:
        """Where in ``block`` the statements go; None: not in this one.

        Args:
            is_whole: the body of what ``path`` names, not a block inside of it.
        """


@dataclass(frozen=True)
class _InFunction(Site):
    """Statements that use parameters of the function they stand in."""

    parameters: frozenset[str] = frozenset()

    def missing_parameters(self, owner: cst.FunctionDef | cst.ClassDef) -> set[str]:
        return self.parameters - set(parameter_names(owner))


def parameter_names(function: cst.FunctionDef) -> list[str]:
    """In their order, those of ``*args`` and ``**kwargs`` too."""
    return [found.name.value for found in m.findall(function.params, m.Param())]


class Head(_InFunction):
    """First in a function, after its docstring."""

    def position(self, block: _Statements, is_whole: bool) -> int | None:
        if not is_whole:
            return None
        match block[0]:
            case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString())]):
                return 1
        return 0


class End(_InFunction):
    """Last in a function."""

    def position(self, block: _Statements, is_whole: bool) -> int | None:
        if not is_whole:
            return None
        if any(m.findall(statement, m.Return()) for statement in block):
            raise AnchorMissing(f"{self.described()} returns before its end")
        return len(block)

    def statements(self) -> list[cst.BaseStatement]:
        first, *others = super().statements()
        apart = cst.EmptyLine(indent=False)
        return [
            first.with_changes(leading_lines=[apart, *first.leading_lines]),
            *others,
        ]


@dataclass(frozen=True)
class AfterField(Site):
    """After the assignment of a class's field."""

    field: str

    def position(self, block: _Statements, is_whole: bool) -> int | None:
        if not is_whole:
            return None
        return _position_after(block, target=self.field)

    def described(self) -> str:
        return f"{super().described()}.{self.field}"

    def names(self) -> set[str]:
        assigned = m.findall(cst.parse_module(self.code), m.AssignTarget(m.Name()))
        return {target.target.value for target in assigned}


@dataclass(frozen=True)
class AfterChoice(Site):
    """After the statement, in a branch of a function, that gives a name its value."""

    target: str
    value: str

    def position(self, block: _Statements, is_whole: bool) -> int | None:
        if is_whole:
            return None
        return _position_after(block, target=self.target, value=self.value)

    def depth(self) -> int:
        return len(self.path) + 1

    def described(self) -> str:
        return f"{super().described()}: {self.target} = {self.value}"


def _position_after(
    block: _Statements, target: str, value: str | None = None
) -> int | None:
    for index, statement in enumerate(block):
        match statement:
            case cst.SimpleStatementLine(
                body=[
                    cst.Assign(
                        targets=[cst.AssignTarget(target=cst.Name(value=name))],
                        value=given,
                    )
                ]
            ) if name == target and value in (None, get_full_name_for_node(given)):
                return index + 1
    return None


class _Blocks(cst.CSTTransformer):
    """Visits each block that belongs to what a site's path names."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.statements = site.statements()
        self._around: list[str] = []
        self._whole: cst.BaseSuite | None = None

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return self._enter(node)

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        return self._enter(node)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        self._around.pop()
        return updated_node

    def leave_ClassDef(
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.ClassDef:
        self._around.pop()
        return updated_node

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        if tuple(self._around) != self.site.path:
            return updated_node
        body = self.changed(updated_node.body, original_node is self._whole)
        return updated_node.with_changes(body=body)

    def changed(self, block: _Statements, is_whole: bool) -> _Statements:
        raise NotImplementedError

    def _enter(self, node: cst.FunctionDef | cst.ClassDef) -> bool:
        self._around.append(node.name.value)
        around = tuple(self._around)
        if around == self.site.path:
            self._whole = node.body
        # Whatever lies elsewhere is not looked at.
        return around == self.site.path[: len(around)]


class _Insertion(_Blocks):
    was_there = False

    def _enter(self, node: cst.FunctionDef | cst.ClassDef) -> bool:
        entered = super()._enter(node)
        missing = node.body is self._whole and self.site.missing_parameters(node)
        if missing:
            names = ", ".join(sorted(missing))
            raise AnchorMissing(f"{self.site.described()} takes no {names}")
        return entered

    def changed(self, block: _Statements, is_whole: bool) -> _Statements:
        position = self.site.position(block, is_whole)
        if position is None:
            return block
        self.was_there = True
        if _find(block, self.statements) is not None:
            return block
        return [*block[:position], *self.statements, *block[position:]]


class _Removal(_Blocks):
    def changed(self, block: _Statements, is_whole: bool) -> _Statements:
        start = _find(block, self.statements)
        if start is None:
            return block
        return [*block[:start], *block[start + len(self.statements) :]]


def _find(block: _Statements, statements: _Statements) -> int | None:
    """Where ``statements`` follow one another in ``block``."""
    wanted = [text_of(statement) for statement in statements]
    texts = [text_of(statement) for statement in block]
    for start in range(len(texts) - len(wanted) + 1):
        if texts[start : start + len(wanted)] == wanted:
            return start
    return None


def text_of(node: cst.CSTNode) -> str:
    """What ``node`` reads as where nothing is indented."""
    return textwrap.dedent(cst.Module([]).code_for_node(node)).strip("\n")
