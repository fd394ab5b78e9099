"""``sglang-dsv4-nvfp4 intree``: this feature in an SGLang source tree, and out of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sglang_dsv4_nvfp4 import seams

if TYPE_CHECKING:
    from sglang_dsv4_nvfp4.intree.tree import Change, Tree


def run(args: argparse.Namespace) -> int:
    """Do one action; 1 when the tree does not take it, and then nothing was written."""
    try:
        from sglang_dsv4_nvfp4.intree.tree import Tree, TreeError
    except ModuleNotFoundError as error:
        _say(f"{error}: pip install 'sglang-dsv4-nvfp4[intree]'")
        return 1
    try:
        tree = Tree(args.tree)
        if tree.version not in (None, seams.sglang_version()):
            _say(
                f"this is SGLang {tree.version}, and the seams were written against "
                f"{seams.sglang_version()}: look at the diff"
            )
        _ACTIONS[args.action](tree, args)
    except TreeError as error:
        for problem in error.problems:
            _say(problem)
        return 1
    return 0


def _apply(tree: Tree, args: argparse.Namespace) -> None:
    if args.check:
        pending = [one for one in tree.changes() if one.found != one.applied]
        _report(pending, tree, "would change; nothing was written")
        return
    _report(tree.apply(), tree, "changed")


def _revert(tree: Tree, args: argparse.Namespace) -> None:
    _report(tree.revert(), tree, "changed back")


def _diff(tree: Tree, args: argparse.Namespace) -> None:
    sys.stdout.writelines(tree.diff())


_ACTIONS: dict[str, Callable[[Tree, argparse.Namespace], None]] = {
    "apply": _apply,
    "diff": _diff,
    "revert": _revert,
}


def _report(changes: Iterable[Change], tree: Tree, outcome: str) -> None:
    """A line for each file, SGLang's own ones first, and how many they are."""
    edited, new = [], []
    for change in changes:
        if change.without is None:
            new.append(change)
            continue
        edited.append(change)
        lines = len(change.applied.splitlines()) - len(change.without.splitlines())
        print(f"{change.path}: {lines} lines")
    for change in new:
        print(f"{change.path}: a file of {len(change.applied.splitlines())} lines")
    print(
        f"{tree.packages}: {len(edited)} of SGLang's files and {len(new)} of ours {outcome}"
    )


def _say(line: str) -> None:
    print(f"sglang-dsv4-nvfp4: {line}", file=sys.stderr)
