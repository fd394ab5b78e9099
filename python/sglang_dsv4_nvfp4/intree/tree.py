"""An SGLang source tree: what the in-tree form changes in it, done or undone.

Everything is worked out before anything is written, and each file is written whole. What
SGLang's files import is there before they do, and goes after them, so that a tree where the
work was cut short still runs, and a next run finishes or undoes it.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from sglang_dsv4_nvfp4.intree import edits, places
from sglang_dsv4_nvfp4.intree.landing import landed
from sglang_dsv4_nvfp4.intree.sites import AnchorMissing

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

    missing: why the form cannot be brought in, if so.
    leftover: what of it could not be taken out, if anything.
    """

    path: str
    without: str | None
    found: str | None
    applied: str | None
    missing: str | None = None
    leftover: str | None = None


@dataclass(frozen=True)
class Written:
    """A file that was changed, or would be; None: there is no such file."""

    path: str
    before: str | None
    after: str | None


class Tree:
    """A folder with an SGLang in it.

    Args:
        folder: a checkout, an unpacked package, or its ``sglang`` folder.

    Raises:
        TreeError: no SGLang there.
    """

    def __init__(self, folder: Path) -> None:
        root = folder.resolve()
        if root.name == "sglang" and (root.parent / _KNOWN_BY).is_file():
            root = root.parent
        # What paths in a patch start from.
        self.root = root
        for packages in (root / "python", root):
            if (packages / _KNOWN_BY).is_file():
                self.packages = packages
                return
        raise TreeError(
            [f"{folder} is no SGLang checkout or package: no {_KNOWN_BY} in it"]
        )

    @property
    def version(self) -> str | None:
        """What the tree says that it is; a checkout may not say it."""
        written = self.packages / "sglang" / "_version.py"
        found = written.is_file() and re.search(
            r"^(?:__version__ = )?version = ['\"]([^'\"]+)", written.read_text(), re.M
        )
        return found[1] if found else None

    def changes(self) -> list[Change]:
        """Every file that differs between the two forms, ours first.

        Raises:
            TreeError: a file of ours is there with other contents.
        """
        return [*self._landed(), *self._edited()]

    def pending(self) -> list[Written]:
        """What :meth:`apply` would write.

        Raises:
            TreeError: naming each anchor that is missing, and each file that has
                something in it of another version of the in-tree form.
        """
        changes = self.changes()
        _refuse(change.missing for change in changes)
        pending = [change for change in changes if change.found != change.applied]
        _refuse(change.leftover for change in pending)
        return [Written(one.path, one.found, one.applied) for one in pending]

    def apply(self) -> list[Written]:
        """Bring the in-tree form into the tree; raises as :meth:`pending`."""
        pending = self.pending()
        for one in pending:
            self._write(one.path, one.after)
        return pending

    def revert(self) -> list[Written]:
        """Take it out again.

        Raises:
            TreeError: naming each file in which something of it would stay.
        """
        changes = self.changes()
        _refuse(change.leftover for change in changes)
        done = [
            Written(one.path, one.found, one.without)
            for one in reversed(changes)
            if one.found != one.without
        ]
        for one in done:
            self._write(one.path, one.after)
        return done

    def diff(self) -> Iterator[str]:
        """Lines of a patch that brings a tree without it the in-tree form.

        Raises:
            TreeError: as :meth:`pending` and :meth:`revert`.
        """
        changes = self.changes()
        _refuse(reason for one in changes for reason in (one.missing, one.leftover))
        for change in sorted(changes, key=lambda one: (one.without is None, one.path)):
            name = (self.packages / change.path).relative_to(self.root).as_posix()
            yield from difflib.unified_diff(
                (change.without or "").splitlines(keepends=True),
                change.applied.splitlines(keepends=True),
                "/dev/null" if change.without is None else f"a/{name}",
                f"b/{name}",
            )

    def _landed(self) -> Iterator[Change]:
        moved = sorted((path, ours) for ours, path in places.places().items())
        for path, ours in moved:
            found = self._read(path) if (self.packages / path).is_file() else None
            applied = landed(ours)
            leftover = None
            if found not in (None, applied):
                leftover = (
                    f"{path} is a file that is not this version's, or was edited: take "
                    "it out by hand, or move it away"
                )
            yield Change(path, None, found, applied, leftover=leftover)

    def _edited(self) -> Iterator[Change]:
        problems: list[str] = []
        made = sorted(edits.edits(self.packages, problems), key=lambda edit: edit.file)
        for problem in problems:
            yield Change(problem, None, None, None, missing=problem)
        for file, group in itertools.groupby(made, key=lambda edit: edit.file):
            yield self._edited_file(file, list(group))

    def _edited_file(self, file: str, made: list[edits.Edit]) -> Change:
        imports = edits.merged_imports(made)
        parts = [*(edit.site for edit in made), *imports]
        try:
            found = self._read(file)
            without = applied = cst.parse_module(found)
        except (cst.ParserSyntaxError, UnicodeDecodeError) as error:
            return Change(file, None, None, None, missing=f"{file}: {error}")
        for part in parts:
            without = part.remove(without)
        leftover = edits.leftover(made, without.code)
        if leftover:
            leftover = (
                f"{file} has a {leftover} that is not this version's, or was edited: "
                "take it out by hand, or with that version"
            )
        try:
            for part in parts:
                # Where it is already, it stays where it is.
                applied = part.insert(applied)
        except AnchorMissing as error:
            missing = f"{file}: {error}"
            return Change(file, without.code, found, found, missing, leftover)
        return Change(file, without.code, found, applied.code, leftover=leftover)

    def _read(self, path: str) -> str:
        # Line ends are left as they are.
        return (self.packages / path).read_bytes().decode()

    def _write(self, path: str, text: str | None) -> None:
        target = (self.packages / path).resolve()
        if text is None:
            target.unlink()
            _tidy(target)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            draft.write_bytes(text.encode())
            if target.exists():
                draft.chmod(target.stat().st_mode)
            os.replace(draft, target)
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def _refuse(reasons: Iterable[str | None]) -> None:
    problems = list(filter(None, reasons))
    if problems:
        raise TreeError(problems)


def _tidy(removed: Path) -> None:
    """Take away what a removed module leaves: its bytecode, and a folder of nothing."""
    cache = removed.parent / "__pycache__"
    for compiled in cache.glob(f"{removed.stem}.*.pyc"):
        compiled.unlink()
    for folder in (cache, removed.parent):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
