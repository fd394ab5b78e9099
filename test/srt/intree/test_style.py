"""What a reviewer of the patch sees first: additions, in SGLang's style.

SGLang 0.5.23 is formatted by `ruff format` (its files pass it, and where that differs from
black they are ruff's), sorted by isort with black's profile, and checked by ruff for
unused and undefined names.
"""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_dsv4_nvfp4.intree import places
from sglang_dsv4_nvfp4.intree.tree import Tree

pytestmark = pytest.mark.stock_sglang

DOCS = Path(__file__).resolve().parents[3] / "docs" / "upstreaming.md"
LINTERS = {
    "black": ["black", "--check", "--quiet"],
    "ruff format": ["ruff", "format", "--isolated", "--check"],
    "isort": [
        *("isort", "--profile", "black", "--project", "sglang"),
        *("--check-only", "--diff"),
    ],
    "ruff": ["ruff", "check", "--isolated", "--select", "F401,F821"],
}


@pytest.fixture
def changes(checkout):
    return Tree(checkout).changes()


def test_every_changed_line_is_an_addition_or_listed(changes):
    removed = [
        line[1:].strip()
        for change in changes
        if change.without is not None
        for line in difflib.ndiff(
            change.without.splitlines(), change.applied.splitlines()
        )
        if line.startswith("- ")
    ]
    (section,) = re.findall(
        r"^## Lines of SGLang that are not additions\n(.*?)^## ",
        DOCS.read_text(),
        re.MULTILINE | re.DOTALL,
    )
    listed = re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE)
    assert removed == listed


@pytest.mark.parametrize("linter", LINTERS)
def test_our_files_pass_sglangs_linters(checkout, changes, linter):
    Tree(checkout).apply()
    new = [change.path for change in changes if change.without is None]
    assert len(new) == len(places.places())
    result = run(linter, checkout / "python", new)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("linter", LINTERS)
def test_sglangs_files_pass_as_they_did(checkout, changes, linter):
    edited = [change.path for change in changes if change.without is not None]
    stock = [run(linter, checkout / "python", [path]) for path in edited]
    Tree(checkout).apply()
    for path, before in zip(edited, stock, strict=True):
        after = run(linter, checkout / "python", [path])
        assert findings(after) == findings(before), path


def run(linter, folder, paths):
    tool, *options = LINTERS[linter]
    return subprocess.run(
        [sys.executable, "-m", tool, *options, *paths],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def findings(result):
    """What was found, wherever in the file it has moved to."""
    kept = [
        line
        for line in (result.stdout + result.stderr).splitlines()
        if line.startswith(("-", "+")) and not line.startswith(("---", "+++"))
    ]
    return result.returncode, kept
