"""Each module has one place in SGLang's tree, or says why it has none."""

import ast
import re
from pathlib import Path

import pytest

from sglang_dsv4_nvfp4.intree import landing, places

pytestmark = pytest.mark.stock_sglang

# Rooms whose __init__ speaks for all of them.
OUTSIDE = ("cli", "intree")
MODULES = [
    path
    for path in sorted(places.PACKAGE.rglob("*.py"))
    if path.relative_to(places.PACKAGE).parts[0] not in OUTSIDE
    and path != places.PACKAGE / "__init__.py"
]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_says_where_it_goes_or_why_it_does_not(path):
    last = ast.get_docstring(ast.parse(path.read_text())).split("\n\n")[-1]
    assert last.startswith(("In-tree: ``sglang/", "Not in-tree: "))
    name = places.module_name(path.relative_to(places.PACKAGE.parent).as_posix())
    assert last.startswith("In-tree") == (name in places.places())


def test_no_two_modules_have_the_same_place():
    found = list(places.places().values())
    assert len(set(found)) == len(found)


def test_places_are_new_files_in_sglangs_folders_or_new_packages(installed):
    new = set(places.places().values())
    for path in new:
        assert not (installed / path).exists(), path
        folder = Path(path).parent
        assert (installed / folder).is_dir() or f"{folder}/__init__.py" in new, path


@pytest.mark.parametrize("ours", places.places())
def test_a_landed_module_compiles_and_names_nothing_of_ours(ours):
    text = landing.landed(ours)
    ast.parse(text)
    assert places.OURS not in text and "n-tree:" not in text
    foreign = re.findall(
        r"this (?:package|project|repository)|plugin|\bseams?\b|original patch"
        r"|\b(?:test|benchmark|docs)/",
        text,
    )
    assert not foreign


def test_what_the_tree_needs_is_in_it(installed):
    """Every module that a landed one imports lands too, or is there."""
    new = set(places.places().values())
    for ours in places.places():
        for node in ast.walk(ast.parse(landing.landed(ours))):
            module = getattr(node, "module", None) or ""
            if not module.startswith("sglang"):
                continue
            stem = module.replace(".", "/")
            candidates = {f"{stem}.py", f"{stem}/__init__.py"}
            in_sglang = any((installed / path).is_file() for path in candidates)
            assert in_sglang or candidates & new, (ours, module)
