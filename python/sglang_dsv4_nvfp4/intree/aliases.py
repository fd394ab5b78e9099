"""Our modules where SGLang has them itself: its own, under both names.

So the tools and the tests of this package speak of what serves, and there is one of each
module in a process.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from sglang_dsv4_nvfp4.intree import places


@functools.cache
def tree() -> Path | None:
    """The ``sglang`` folder of this environment, where it has this feature itself.

    Nothing of it is imported to find out.
    """
    folder = places.installed_sglang()
    known_by = places.place(f"{places.OURS}.config")
    return folder if folder and (folder.parent / known_by).is_file() else None


def install() -> None:
    """Have our modules that SGLang has be SGLang's; nothing where it has none."""
    if tree() is not None:
        sys.meta_path.insert(0, _Finder())


def uninstall() -> None:
    """Have our modules be ours again, those aside that are imported already."""
    sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, _Finder)]


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        home = places.homes().get(fullname)
        return home and ModuleSpec(fullname, _Loader(home))


class _Loader(importlib.abc.Loader):
    """Gives SGLang's module, which stays as it is."""

    def __init__(self, home: str) -> None:
        self._home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._home)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just put the alias's there.
        module.__spec__ = self._own_spec
