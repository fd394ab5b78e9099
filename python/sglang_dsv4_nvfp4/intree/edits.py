"""What is written in SGLang's own files: a site for each seam, and the variables.

A seam's statements are those of its guard, read from ``guards.py`` as a syntax tree and
not run. Whatever a guard needs besides is imported at the top of the file, as it is at
the top of ``guards.py``.
"""

from __future__ import annotations

import builtins
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from sglang_dsv4_nvfp4 import seams
from sglang_dsv4_nvfp4.intree import places, sites, toplevel
from sglang_dsv4_nvfp4.intree.landing import relocated, used_names

_GUARDS = f"{places.OURS}.guards"
_ENVIRON = f"{places.OURS}.environ"
# Of SGLang's fields, the one that ours follow: what DeepSeek-V4's caches hold.
_RELATED_VARIABLE = "SGLANG_DSV4_COMPRESSED_KV_LAYOUT"
_GATE = (f"{places.OURS}.kv_gate", "is_nvfp4_kv_cache")


@dataclass(frozen=True)
class Edit:
    """What one file gets for one reason.

    reason: the seam's target, or the variables.
    file: ``sglang/...``, in the folder that the package lies in.
    """

    reason: str
    file: str
    site: sites.Site | toplevel.Entry
    imports: tuple[toplevel.Import, ...] = ()


def edits(
    packages: Path, problems: list[str], table: tuple[seams.Seam, ...] = seams.SEAMS
) -> list[Edit]:
    """Every edit of the tree whose ``sglang`` lies in ``packages``.

    Args:
        problems: gets a line for each seam whose file is not there.

    Raises:
        ValueError: a guard says something that cannot stand at its site.
    """
    made = []
    for seam in table:
        try:
            made += _edits_of(seam, table, packages)
        except sites.AnchorMissing as error:
            problems.append(str(error))
    return [*made, _variables()]


def _edits_of(
    seam: seams.Seam, table: tuple[seams.Seam, ...], packages: Path
) -> Iterator[Edit]:
    match seam.kind:
        case seams.Kind.SUBCLASS:
            # Its module lands, and nothing has to be written at the target.
            return
        case seams.Kind.REPLACE:
            yield _choice(seam, packages)
        case seams.Kind.AROUND | seams.Kind.AFTER:
            yield _guard(seam, packages)
        case seams.Kind.REGISTER:
            yield _entry(seam, table, packages)


def _guard(seam: seams.Seam, packages: Path) -> Edit:
    file, path = _locate(seam.target, packages)
    code, imports, parameters = guard_statements(seam.hook_name)
    kind = sites.Head if seam.kind is seams.Kind.AROUND else sites.End
    return Edit(seam.target, file, kind(path, code, parameters), imports)


def _choice(seam: seams.Seam, packages: Path) -> Edit:
    file, (*path, chosen) = _locate(seam.site, packages)
    code = f"if {_GATE[1]}():\n    {chosen} = {seam.hook_name}\n"
    return Edit(
        seam.target,
        file,
        sites.AfterChoice(tuple(path), code, target=chosen, value=seam.target_name),
        (_import(*_GATE), _import_hook(seam)),
    )


def _entry(seam: seams.Seam, table: tuple[seams.Seam, ...], packages: Path) -> Edit:
    replaced = seams.replacing(table)
    file, (dictionary,) = _locate(seam.site, packages)
    return Edit(
        seam.target,
        file,
        toplevel.Entry(
            dictionary,
            neighbour=replaced.target_name,
            key=replaced.hook_name,
            value=seam.hook_name,
        ),
        (_import_hook(seam), _import_hook(replaced)),
    )


def _variables() -> Edit:
    """The fields of our ``Envs`` among those of SGLang's."""
    module = cst.parse_module(places.source(_ENVIRON))
    (envs,) = (
        statement
        for statement in module.body
        if m.matches(statement, m.ClassDef(name=m.Name("Envs")))
    )
    code = "".join(module.code_for_node(field) for field in envs.body.body)
    site = sites.AfterField(("Envs",), code, field=_RELATED_VARIABLE)
    file = places.homes()[_ENVIRON].replace(".", "/") + ".py"
    return Edit("environment variables", file, site)


def guard_statements(
    name: str, source: str | None = None
) -> tuple[str, tuple[toplevel.Import, ...], frozenset[str]]:
    """The statements of a guard, what they import, and the parameters they use.

    Args:
        source: the text of ``guards.py``; None for the installed one.

    Raises:
        ValueError: the guard cannot stand at its site.
    """
    module, imported = _guards(source)
    (guard,) = (
        statement
        for statement in module.body
        if m.matches(statement, m.FunctionDef(name=m.Name(name)))
    )
    first, *parameters = sites.parameter_names(guard)
    statements = list(guard.body.body)
    if first == "original":
        calls_original = m.SimpleStatementLine(
            body=[m.Return(m.Call(func=m.Name("original"), args=[]))]
        )
        if not m.matches(statements.pop(), calls_original):
            raise ValueError(f"the guard {name} does not end with the original")
    body = guard.body.with_changes(body=statements)
    used = used_names(body)
    inside = {alias.evaluated_name for alias in m.findall(body, m.ImportAlias())}
    at_the_top = used & imported.keys()
    unknown = used - at_the_top - inside - set(parameters) - set(dir(builtins))
    if unknown:
        raise ValueError(f"the guard {name} uses {', '.join(sorted(unknown))}")
    imports = _grouped((imported[used_name], used_name) for used_name in at_the_top)
    code = "".join(module.code_for_node(statement) for statement in statements)
    return code, imports, frozenset(used & set(parameters))


@functools.cache
def _guards(source: str | None) -> tuple[cst.Module, dict[str, str]]:
    """``guards.py`` with in-tree names, and the module of each name it imports."""
    module = relocated(source or places.source(_GUARDS))
    imported = {}
    for statement in module.body:
        match statement:
            case cst.SimpleStatementLine(body=[cst.ImportFrom() as found]):
                source_module = get_full_name_for_node(found.module)
                for alias in found.names:
                    imported[alias.evaluated_name] = source_module
    return module, imported


def leftover(made: Iterable[Edit], without: str) -> str | None:
    """A name that our edits brought into a file and that is in it without them."""
    made = list(made)
    names = {name for one in merged_imports(made) for name in one.names}
    for edit in made:
        names.update(edit.site.names())
    for name in sorted(names):
        if re.search(rf"\b{name}\b", without):
            return name
    return None


def _locate(target: str, packages: Path) -> tuple[str, tuple[str, ...]]:
    """The file that a dotted path leads into, and the names that are left."""
    parts = target.split(".")
    for end in range(len(parts) - 1, 0, -1):
        file = "/".join(parts[:end]) + ".py"
        if (packages / file).is_file():
            return file, tuple(parts[end:])
    raise sites.AnchorMissing(f"no file of {target}")


def _import(ours: str, name: str) -> toplevel.Import:
    return toplevel.Import(places.homes()[ours], (name,))


def _import_hook(seam: seams.Seam) -> toplevel.Import:
    return _import(f"{places.OURS}.{seam.hook_module}", seam.hook_name)


def _grouped(wanted: Iterable[tuple[str, str]]) -> tuple[toplevel.Import, ...]:
    """One import a module, of ``(module, name)``."""
    by_module: dict[str, set[str]] = {}
    for module, name in wanted:
        by_module.setdefault(module, set()).add(name)
    return tuple(
        toplevel.Import(module, tuple(sorted(names)))
        for module, names in sorted(by_module.items())
    )


def merged_imports(made: Iterable[Edit]) -> tuple[toplevel.Import, ...]:
    """The imports of all edits of one file, one a module."""
    return _grouped(
        (one.module, name)
        for edit in made
        for one in edit.imports
        for name in one.names
    )
