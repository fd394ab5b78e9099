"""Where our modules go in SGLang's tree: their docstrings say it.

A module that has a place ends its docstring with ``In-tree: ``, the path in double
backquotes, and a full stop; one that has none says why, after ``Not in-tree: ``.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
OURS = PACKAGE.name

# What stands in for a module that SGLang has.
_STANDS_FOR = {f"{OURS}.environ": "sglang.srt.environ"}
_PLACE = re.compile(r"^In-tree: ``(sglang/[\w/]+\.py)``\.$", re.MULTILINE)


@functools.cache
def places() -> dict[str, str]:
    """The path in SGLang's tree of each module that has one, by our module's name."""
    paths = sorted(PACKAGE.rglob("*.py"))
    names = [module_name(path.relative_to(PACKAGE.parent).as_posix()) for path in paths]
    return {name: path for name in names if (path := place(name))}


def place(ours: str) -> str | None:
    """The path in SGLang's tree of our module ``ours``; None: it has none."""
    found = _PLACE.search(source(ours))
    return found and found[1]


@functools.cache
def homes() -> dict[str, str]:
    """What each of our modules is called in-tree, by its name here."""
    moved = {ours: module_name(path) for ours, path in places().items()}
    return moved | _STANDS_FOR


def installed_sglang() -> Path | None:
    """The ``sglang`` folder of this environment; nothing of it is imported."""
    spec = importlib.util.find_spec("sglang")
    return Path(spec.origin).parent if spec and spec.origin else None


def source(ours: str) -> str:
    """The text of our module of that name."""
    return source_path(ours).read_text()


def source_path(ours: str) -> Path:
    """The file of our module of that name."""
    stem = PACKAGE.parent.joinpath(*ours.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


def is_ours(name: str) -> bool:
    """Whether ``name`` is one of our modules, with a place in-tree or without."""
    return name.split(".")[0] == OURS and source_path(name).is_file()


def module_name(path: str) -> str:
    """``a/b.py`` and ``a/b/__init__.py`` are ``a.b``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
