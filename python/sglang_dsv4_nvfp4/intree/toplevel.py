"""Places at the top of a source file: its imports, and the entries of its dictionaries.

As in ``sites.py``, nothing else of the file changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.helpers import get_full_name_for_node

from sglang_dsv4_nvfp4.intree.landing import import_line
from sglang_dsv4_nvfp4.intree.sites import AnchorMissing, text_of


@dataclass(frozen=True)
class Entry:
    """An entry of a module's dictionary, before that of ``neighbour``."""

    dictionary: str
    neighbour: str
    key: str
    value: str

    def insert(self, module: cst.Module) -> cst.Module:
        """
        Raises:
            AnchorMissing: naming what is not there.
        """
        found = self._dictionary(module)
        if any(map(self._is_ours, found.elements)):
            return module
        names = [get_full_name_for_node(element.key) for element in found.elements]
        if self.neighbour not in names[1:]:
            raise AnchorMissing(f"no {self.described()}, or none before it")
        at = names.index(self.neighbour)
        entry = cst.DictElement(
            cst.parse_expression(self.key),
            cst.parse_expression(self.value),
            comma=_like(found.elements[at - 1].comma),
        )
        elements = [*found.elements[:at], entry, *found.elements[at:]]
        return module.with_deep_changes(found, elements=elements)

    def remove(self, module: cst.Module) -> cst.Module:
        """``module`` without it."""
        try:
            found = self._dictionary(module)
        except AnchorMissing:
            return module
        elements = [one for one in found.elements if not self._is_ours(one)]
        return module.with_deep_changes(found, elements=elements)

    def names(self) -> set[str]:
        """Names that the entry brings in."""
        return {self.key, self.value}

    def _is_ours(self, element: cst.BaseDictElement) -> bool:
        return (
            get_full_name_for_node(element.key) == self.key
            and get_full_name_for_node(element.value) == self.value
        )

    def described(self) -> str:
        """What has to be in the file for the site to be found."""
        return f"{self.dictionary}[{self.neighbour}]"

    def _dictionary(self, module: cst.Module) -> cst.Dict:
        for statement in _small_statements(module):
            match statement:
                case cst.AnnAssign(
                    target=cst.Name(value=self.dictionary), value=cst.Dict() as found
                ):
                    return found
                case cst.Assign(
                    targets=[cst.AssignTarget(target=cst.Name(value=self.dictionary))],
                    value=cst.Dict() as found,
                ):
                    return found
        raise AnchorMissing(f"no dictionary {self.dictionary}")


@dataclass(frozen=True)
class Import:
    """``from module import names`` among a module's other imports of SGLang."""

    module: str
    names: tuple[str, ...]

    def insert(self, module: cst.Module) -> cst.Module:
        """``module`` with this import where isort wants it.

        Raises:
            AnchorMissing: it imports nothing of SGLang, or has such a name already.
        """
        line = import_line(self.module, self.names)
        body = list(module.body)
        if self._present(body) is not None:
            return module
        taken = sorted(set(self.names) & set(_bound_names(module)))
        if taken:
            raise AnchorMissing(f"it has a {', '.join(taken)} of its own")
        others = self._others(body)
        after = [index for index in others if _imported(body[index]) > self.module]
        at = min(after, default=max(others) + 1)
        if at == min(others):
            # What sets the section apart belongs to its first line.
            line = line.with_changes(leading_lines=body[at].leading_lines)
            body[at] = body[at].with_changes(leading_lines=[])
        return module.with_changes(body=[*body[:at], line, *body[at:]])

    def remove(self, module: cst.Module) -> cst.Module:
        """``module`` without it."""
        body = list(module.body)
        at = self._present(body)
        if at is None:
            return module
        if body[at].leading_lines:
            body[at + 1] = body[at + 1].with_changes(
                leading_lines=body[at].leading_lines
            )
        return module.with_changes(body=[*body[:at], *body[at + 1 :]])

    def _present(self, body: Sequence[cst.BaseStatement]) -> int | None:
        """Where this very import is."""
        text = text_of(import_line(self.module, self.names))
        for index, statement in enumerate(body):
            if _imported(statement) == self.module and text_of(statement) == text:
                return index
        return None

    def _others(self, body: Sequence[cst.BaseStatement]) -> list[int]:
        """Imports of SGLang at the top, up to the first statement of another kind."""
        found: list[int] = []
        for index, statement in enumerate(body):
            if _imported(statement).startswith("sglang."):
                found.append(index)
            elif found:
                break
        if not found:
            raise AnchorMissing("no import of sglang's at the top")
        return found


def _like(comma: cst.Comma) -> cst.Comma:
    """A comma that is followed by a new line as this one is, and by no comment."""
    match comma.whitespace_after:
        case cst.ParenthesizedWhitespace() as space:
            plain = space.with_changes(
                first_line=cst.TrailingWhitespace(), empty_lines=[]
            )
            return comma.with_changes(whitespace_after=plain)
    return comma


def _imported(statement: cst.BaseStatement) -> str:
    """The module of an absolute ``from ... import``; of another statement nothing."""
    match statement:
        case cst.SimpleStatementLine(
            body=[cst.ImportFrom(module=cst.BaseExpression() as module, relative=[])]
        ):
            return get_full_name_for_node(module) or ""
    return ""


def _small_statements(module: cst.Module) -> Iterator[cst.BaseSmallStatement]:
    for statement in module.body:
        if isinstance(statement, cst.SimpleStatementLine):
            yield from statement.body


def _bound_names(module: cst.Module) -> Iterator[str]:
    """Names that a module's own statements give a meaning, those of blocks aside."""
    for statement in module.body:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            yield statement.name.value
    for statement in _small_statements(module):
        match statement:
            case cst.ImportFrom(names=[*aliases]) | cst.Import(names=[*aliases]):
                for alias in aliases:
                    yield alias.evaluated_alias or alias.evaluated_name
            case cst.Assign(targets=targets):
                for target in targets:
                    yield get_full_name_for_node(target.target) or ""
            case cst.AnnAssign(target=target):
                yield get_full_name_for_node(target) or ""
