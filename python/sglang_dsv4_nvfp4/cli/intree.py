"""``sglang-dsv4-nvfp4 intree``: this feature in an SGLang source tree, and out of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sglang_dsv4_nvfp4 import seams

if TYPE_CHECKING:
    from sglang_dsv4_nvfp4.intree.tree import Tree, Written


def run(args: argparse.Namespace) -> int:
    """Do one action; 1 when the tree does not take it, which is known before it is
    written to."""
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
    except OSError as error:
        _say(f"{error}; what was done so far can be finished, or undone, by a next run")
        return 1
    return 0


def _apply(tree: Tree, args: argparse.Namespace) -> None:
    if args.check:
        _report(tree.pending(), tree, "would change; nothing was written")
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


def _report(written: Sequence[Written], tree: Tree, outcome: str) -> None:
    """A line for each file, SGLang's own ones first, and how many they are."""
    of_sglang = [one for one in written if None not in (one.before, one.after)]
    ours = [one for one in written if one not in of_sglang]
    for one in (*of_sglang, *ours):
        print(f"{one.path}: {_length(one.after) - _length(one.before):+d} lines")
    print(
        f"{tree.packages}: {len(of_sglang)} of SGLang's files and {len(ours)} of ours "
        f"{outcome}"
    )


def _length(text: str | None) -> int:
    return len((text or "").splitlines())


def _say(line: str) -> None:
    print(f"sglang-dsv4-nvfp4: {line}", file=sys.stderr)
