"""Sites: found by names, done once, undone to the byte."""

import libcst as cst
import pytest

from sglang_dsv4_nvfp4.intree import sites, toplevel

pytestmark = pytest.mark.stock_sglang

SOURCE = '''\
"""A module."""

from __future__ import annotations

import os

from sglang.b import (
    Old,  # kept as it is
)
from sglang.d import other

TABLE: dict[type, object] = {
    First: one,  # the first
    Old: old,
}


class Pool(Base):
    # A field.
    size = Field(1)
    name = "x"


def plain(x, *, y = 2):
    # Why.
    return x+y   # odd spacing stays


class Builder:
    def build(self, kind):
        """Build it."""
        if kind:
            cls = New
            extra = {}
        else:
            cls = Old
            extra = {"a": 1}

        def cls_of():
            cls = Old
            return cls

        return cls(**extra)

    def check(self):
        self.seen = True

    async def unused(self):
        pass
    # The last word.
'''

GUARD = "# As asked.\nif wanted():\n    return other(x)\n"


def choice(value="Old"):
    code = "if wanted():\n    cls = Ours\n"
    return sites.AfterChoice(("Builder", "build"), code, target="cls", value=value)


# Each site, and what it looks like with the line before and the line after.
CASES = {
    "the head of a function": (
        sites.Head(("plain",), GUARD),
        "def plain(x, *, y = 2):\n"
        "    # As asked.\n"
        "    if wanted():\n"
        "        return other(x)\n"
        "    # Why.\n",
    ),
    "the head of a method with a docstring": (
        sites.Head(("Builder", "build"), GUARD),
        '        """Build it."""\n'
        "        # As asked.\n"
        "        if wanted():\n"
        "            return other(x)\n"
        "        if kind:\n",
    ),
    "the end of a method": (
        sites.End(("Builder", "check"), "check()\n"),
        "        self.seen = True\n\n        check()\n\n    async def unused",
    ),
    "the end of a method with a comment after it": (
        sites.End(("Builder", "unused"), "check()\n"),
        "        pass\n\n        check()\n    # The last word.\n",
    ),
    "after a field": (
        sites.AfterField(("Pool",), "# Ours.\nours = Field(2)\n", field="size"),
        "    size = Field(1)\n"
        "    # Ours.\n"
        "    ours = Field(2)\n"
        '    name = "x"\n',
    ),
    "after a choice in a branch": (
        choice(),
        "            cls = Old\n"
        "            if wanted():\n"
        "                cls = Ours\n"
        '            extra = {"a": 1}\n',
    ),
    "an entry": (
        toplevel.Entry("TABLE", neighbour="Old", key="Ours", value="ours"),
        "    First: one,  # the first\n    Ours: ours,\n    Old: old,\n}\n",
    ),
    "an import before the others": (
        toplevel.Import("sglang.a", ("f",)),
        "import os\n\nfrom sglang.a import f\nfrom sglang.b import (\n",
    ),
    "an import between others": (
        toplevel.Import("sglang.c", ("g", "F")),
        ")\nfrom sglang.c import F, g\nfrom sglang.d import other\n",
    ),
    "an import after the others": (
        toplevel.Import("sglang.e", ("h",)),
        "from sglang.d import other\nfrom sglang.e import h\n\nTABLE",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_done_once_and_undone_to_the_byte(case):
    site, expected = CASES[case]
    done = site.insert(cst.parse_module(SOURCE))
    assert expected in done.code
    # As a tree that is read again.
    again = cst.parse_module(done.code)
    assert site.insert(again).code == done.code
    assert site.remove(again).code == SOURCE
    assert site.remove(cst.parse_module(SOURCE)).code == SOURCE


@pytest.mark.parametrize("case", CASES)
def test_every_change_is_an_addition(case):
    done = CASES[case][0].insert(cst.parse_module(SOURCE)).code.splitlines()
    lines = iter(done)
    assert all(line in lines for line in SOURCE.splitlines())


@pytest.mark.parametrize(
    ("case", "before", "after"),
    [
        ("the head of a function", "    # Why.\n", "    log(x)\n    # Why.\n"),
        ("the end of a method", "seen = True\n", "seen = True\n        log(1)\n"),
        ("after a field", "Field(1)\n", "Field(1)\n    theirs = Field(3)\n"),
        ("an entry", "    Old: old", "    Theirs: theirs,\n    Old: old"),
        ("an import between others", ")\n", ")\nfrom sglang.bb import log\n"),
    ],
)
def test_where_it_is_it_stays_when_others_come_beside_it(case, before, after):
    site, _ = CASES[case]
    both = site.insert(cst.parse_module(SOURCE)).code.replace(before, after, 1)
    assert site.insert(cst.parse_module(both)).code == both
    alone = SOURCE.replace(before, after, 1)
    assert site.remove(cst.parse_module(both)).code == alone


def test_an_entry_of_anothers_is_neither_ours_nor_taken():
    site, _ = CASES["an entry"]
    theirs = SOURCE.replace("    Old: old", "    Ours: theirs,\n    Old: old")
    assert site.remove(cst.parse_module(theirs)).code == theirs


def test_all_of_them_at_once():
    module = cst.parse_module(SOURCE)
    for site, _ in CASES.values():
        module = site.insert(module)
    for site, _ in CASES.values():
        module = site.remove(cst.parse_module(module.code))
    assert module.code == SOURCE


def test_windows_line_ends_stay():
    source = SOURCE.replace("\n", "\r\n")
    site = CASES["the head of a function"][0]
    done = site.insert(cst.parse_module(source.encode()))
    assert "\n" not in done.code.replace("\r\n", "")
    assert site.remove(done).code == source


@pytest.mark.parametrize(
    ("site", "named"),
    [
        (sites.Head(("gone",), GUARD), "no gone"),
        (sites.Head(("Builder", "plain"), GUARD), "no Builder.plain"),
        (sites.AfterField(("Pool",), "a = 1\n", field="gone"), "Pool.gone"),
        (sites.End(("plain",), "check()\n"), "plain returns before its end"),
        (choice("Gone"), "no Builder.build: cls = Gone"),
        (toplevel.Entry("GONE", "Old", "Ours", "ours"), "no dictionary GONE"),
        (toplevel.Entry("TABLE", "Gone", "Ours", "ours"), r"no TABLE\[Gone\]"),
        (
            toplevel.Import("sglang.a", ("plain", "TABLE")),
            "it has a TABLE, plain of its",
        ),
    ],
)
def test_a_missing_anchor_is_named(site, named):
    with pytest.raises(sites.AnchorMissing, match=named):
        site.insert(cst.parse_module(SOURCE))


def test_a_file_that_imports_nothing_of_sglang_is_named():
    with pytest.raises(sites.AnchorMissing, match="no import of sglang's"):
        toplevel.Import("sglang.a", ("f",)).insert(cst.parse_module("import os\n"))


def test_long_statements_are_broken_at_their_depth():
    call = (
        f"call(first, {', '.join(f'argument_{index}' for index in range(5))}, the_last)"
    )
    assert 88 - 8 < len(call) <= 88 - 4
    deep = sites.Head(("Builder", "build"), f"{call}\n").insert(
        cst.parse_module(SOURCE)
    )
    assert call not in deep.code
    flat = sites.Head(("plain",), f"{call}\n").insert(cst.parse_module(SOURCE))
    assert call in flat.code
