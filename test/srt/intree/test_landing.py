"""How our modules' text changes on the way."""

import pytest

from sglang_dsv4_nvfp4.intree import landing

pytestmark = pytest.mark.stock_sglang

ATTENTION = "sglang.kernels.ops.attention.dsv4_nvfp4"
STORES = "sglang.kernels.ops.kvcache.dsv4_nvfp4"


def relocated(text):
    return landing.relocated(text).code


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            "from sglang_dsv4_nvfp4.layout import ROPE_DIM as ROPE, NOPE_DIM",
            f"from {ATTENTION}.layout import NOPE_DIM\n"
            f"from {ATTENTION}.layout import ROPE_DIM as ROPE",
        ),
        (
            "from sglang_dsv4_nvfp4 import layout",
            f"from {ATTENTION} import layout",
        ),
        (
            "from sglang_dsv4_nvfp4 import kv_gate as gate",
            "from sglang.srt.layers.attention.dsv4 import nvfp4_kv_gate as gate",
        ),
        (
            "from sglang_dsv4_nvfp4 import kv_gate",
            "from sglang.srt.layers.attention.dsv4 import nvfp4_kv_gate as kv_gate",
        ),
        (
            "from sglang_dsv4_nvfp4.environ import envs",
            "from sglang.srt.environ import envs",
        ),
        ("from torch import nn", "from torch import nn"),
        ("import sglang_dsv4", "import sglang_dsv4"),
    ],
)
def test_imports_name_the_new_places(ours, theirs):
    assert relocated(ours + "\n") == theirs + "\n"


def test_an_import_of_modules_that_part_becomes_two():
    text = relocated(
        "def f():\n"
        "    # Late: it is heavy.\n"
        "    from sglang_dsv4_nvfp4 import layout, quantize\n"
    )
    assert text == (
        "def f():\n"
        "    # Late: it is heavy.\n"
        f"    from {ATTENTION} import layout\n"
        f"    from {STORES} import quantize\n"
    )


def test_calls_into_what_has_no_place_are_left_out():
    text = relocated(
        "from sglang_dsv4_nvfp4 import layout, seams\n"
        "def f():\n"
        "    seams.require_installed()\n"
        "    return layout.NOPE_DIM\n"
    )
    assert text == (
        f"from {ATTENTION} import layout\ndef f():\n    return layout.NOPE_DIM\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "from sglang_dsv4_nvfp4 import seams\nx = seams.stock('y')\n",
        "from sglang_dsv4_nvfp4 import seams\nseams.x()\ny = [seams]\n",
        "from sglang_dsv4_nvfp4 import seams as table\nprint(table.SEAMS)\n",
    ],
)
def test_any_other_use_of_it_is_an_error(text):
    with pytest.raises(ValueError, match="(seams|table) has no place in-tree"):
        relocated(text)


def test_a_name_out_of_a_module_without_a_place_is_an_error():
    with pytest.raises(ValueError, match="signatures.resolve has no place in-tree"):
        relocated("from sglang_dsv4_nvfp4.signatures import resolve\n")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ('"""A.\n\nIn-tree: ``sglang/a.py``.\n"""\n', '"""A."""\n'),
        ('"""A.\n\nB.\n\nIn-tree: ``sglang/a.py``.\n"""\n', '"""A.\n\nB.\n"""\n'),
        ('"""A\nand B.\n\nIn-tree: ``sglang/a.py``.\n"""\n', '"""A\nand B.\n"""\n'),
        ('"""A."""\n', '"""A."""\n'),
        ("x = 1\n", "x = 1\n"),
    ],
)
def test_the_docstring_loses_its_last_paragraph(ours, theirs):
    assert relocated(ours) == theirs
