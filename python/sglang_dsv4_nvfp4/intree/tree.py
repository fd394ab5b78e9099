"""An SGLang source tree: what the in-tree form changes in it, done or undone.

Everything is worked out before anything is written, and each file is written whole.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from sglang_dsv4_nvfp4.intree import edits, places
from sglang_dsv4_nvfp4.intree.landing import landed
from sglang_dsv4_nvfp4.intree.sites import AnchorMissing

# Where the package may lie: in a checkout, in an unpacked wheel, or it is the folder.
_PACKAGES = ("python", ".", "..")
_KNOWN_BY = "sglang/srt/environ.py"


class TreeError(ValueError):
    """Why nothing was done, a line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Change:
    """One file without the in-tree form, as it lies there, and with it.

    None: there is no such file.
    """

    path: str
    without: str | None
    found: str | None
    applied: str


class Tree:
    """A folder with an SGLang in it.

    Args:
        folder: a checkout, an unpacked package, or its ``sglang`` folder.

    Raises:
        TreeError: no SGLang there.
    """

    def __init__(self, folder: Path) -> None:
        for packages in _PACKAGES:
            self.packages = (folder.resolve() / packages).resolve()
            inside = self.packages / "sglang"
            if packages == ".." and inside != folder.resolve():
                continue
            if (self.packages / _KNOWN_BY).is_file():
                break
        else:
            raise TreeError(
                [f"{folder} is no SGLang checkout or package: no {_KNOWN_BY} in it"]
            )
        self.root = folder.resolve()

    @property
    def version(self) -> str | None:
        """What the tree says that it is; a checkout may not say it."""
        written = self.packages / "sglang" / "_version.py"
        found = written.is_file() and re.search(
            r"^(?:__version__ = )?version = ['\"]([^'\"]+)", written.read_text(), re.M
        )
        return found[1] if found else None

    def changes(self) -> list[Change]:
        """Every file that differs between the two forms.

        Raises:
            TreeError: naming each anchor that is missing, and each file that has
                something in it of another version of the in-tree form.
        """
        problems: list[str] = []
        changes = [*self._edited(problems), *self._landed(problems)]
        if problems:
            raise TreeError(problems)
        return changes

    def apply(self) -> list[Change]:
        """Bring the in-tree form into the tree; what was changed."""
        done = [change for change in self.changes() if change.found != change.applied]
        for change in done:
            self._write(change.path, change.applied)
        return done

    def revert(self) -> list[Change]:
        """Take it out again; what was changed."""
        done = [change for change in self.changes() if change.found != change.without]
        for change in done:
            self._write(change.path, change.without)
        return done

    def diff(self) -> Iterator[str]:
        """Lines of a patch that brings a tree without it the in-tree form."""
        prefix = (self.packages / "sglang").relative_to(
            self.root.parent if self.root.name == "sglang" else self.root
        )
        for change in self.changes():
            name = (prefix.parent / change.path).as_posix()
            yield from difflib.unified_diff(
                (change.without or "").splitlines(keepends=True),
                change.applied.splitlines(keepends=True),
                "/dev/null" if change.without is None else f"a/{name}",
                f"b/{name}",
            )

    def _edited(self, problems: list[str]) -> Iterator[Change]:
        made = edits.edits(self.packages, problems)
        made.sort(key=lambda edit: edit.file)
        for file, group in itertools.groupby(made, key=lambda edit: edit.file):
            yield from self._edited_file(file, list(group), problems)

    def _edited_file(
        self, file: str, made: list[edits.Edit], problems: list[str]
    ) -> Iterator[Change]:
        found = self._read(file)
        without = cst.parse_module(found)
        imports = edits.merged_imports(made)
        for part in (*(edit.site for edit in made), *imports):
            without = part.remove(without)
        applied = without
        try:
            for edit in made:
                problem = edits.parameter_problem(edit, without)
                if problem:
                    raise AnchorMissing(problem)
                applied = edit.site.insert(applied)
            for one in imports:
                applied = one.insert(applied)
        except AnchorMissing as error:
            problems.append(f"{file}: {error}")
            return
        text = without.code
        for home in map(places.module_name, places.places().values()):
            if home in text:
                problems.append(
                    f"{file} has something of {home} that is not this version's: revert "
                    "with the version that wrote it"
                )
                return
        yield Change(file, text, found, applied.code)

    def _landed(self, problems: list[str]) -> Iterator[Change]:
        for path, ours in sorted(
            (path, ours) for ours, path in places.places().items()
        ):
            found = self._read(path) if (self.packages / path).exists() else None
            applied = landed(ours)
            if found not in (None, applied):
                problems.append(
                    f"{path} is there and not this version's: move it away, or revert "
                    "with the version that wrote it"
                )
                continue
            yield Change(path, None, found, applied)

    def _read(self, path: str) -> str:
        # Line ends are left as they are.
        return (self.packages / path).read_bytes().decode()

    def _write(self, path: str, text: str | None) -> None:
        target = self.packages / path
        if text is None:
            target.unlink()
            _tidy(target)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(target.name + ".new")
        draft.write_bytes(text.encode())
        if target.exists():
            draft.chmod(target.stat().st_mode)
        os.replace(draft, target)


def _tidy(removed: Path) -> None:
    """Take away what a removed module leaves: its bytecode, and a folder of nothing."""
    cache = removed.parent / "__pycache__"
    for compiled in cache.glob(f"{removed.stem}.*.pyc"):
        compiled.unlink()
    for folder in (cache, removed.parent):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
