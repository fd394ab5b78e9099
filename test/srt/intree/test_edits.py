"""From the seam table to SGLang's files."""

import textwrap

import libcst as cst
import pytest

from sglang_dsv4_nvfp4 import seams, signatures, surface
from sglang_dsv4_nvfp4.intree import edits, places, sites, toplevel

pytestmark = pytest.mark.stock_sglang


def test_each_seam_has_its_in_tree_form(installed):
    """A seam that has none, or a kind that nothing is made of, is missing here."""
    made = [edit.reason for edit in edits.edits(installed, problems=[])]
    written = [
        seam.target for seam in seams.SEAMS if seam.kind is not seams.Kind.SUBCLASS
    ]
    assert made == [*written, "environment variables"]


@pytest.mark.parametrize("seam", seams.SEAMS, ids=lambda seam: seam.hook)
def test_what_a_seam_brings_in_has_a_place(seam):
    module = f"{places.OURS}.{seam.hook_module}"
    assert module in places.places() or module == f"{places.OURS}.guards"


@pytest.mark.parametrize("kind", seams.Kind)
def test_each_kind_has_a_seam_that_shows_it(kind):
    assert any(seam.kind is kind for seam in seams.SEAMS)


def test_all_our_variables_join_sglangs(installed):
    from sglang_dsv4_nvfp4.environ import Envs, EnvStr

    variables = edits.edits(installed, problems=[])[-1]
    ours = [name for name, field in vars(Envs).items() if isinstance(field, EnvStr)]
    fields = cst.parse_module(variables.site.code).body
    assert [field.body[0].targets[0].target.value for field in fields] == ours
    assert len(ours) > 1 and all(name.startswith("SGLANG_") for name in ours)


def test_what_sglang_has_is_not_declared_twice(installed):
    from sglang.srt.environ import Envs as theirs

    from sglang_dsv4_nvfp4.environ import Envs, EnvStr

    assert not set(vars(Envs)) & set(vars(theirs)) - {"__module__", "__doc__"}
    (own,) = (base for base in Envs.__mro__[1:] if base is not object)
    for name, field in vars(own).items():
        if isinstance(field, EnvStr):
            assert vars(theirs)[name].default == field.default


_TARGET = """\
import os

from sglang.srt.environ import envs


def attend(**kwargs):
    return "theirs"
"""


class Cache:
    def __init__(self, *shape):
        self.shape = shape


def both_ways(attend):
    return attend(k_cache=Cache(1, 584)), attend(k_cache=Cache(1, 384))


def test_a_seam_that_is_added_once_is_in_both_forms(device, monkeypatch, tmp_path):
    """One row in the table, and `make surface`; here over a module made up for it."""
    import sys
    from types import ModuleType

    from sglang.srt.plugins.hook_registry import HookRegistry

    from sglang_dsv4_nvfp4.attention import dispatch

    monkeypatch.setattr(
        dispatch, "flash_mla_with_nvfp4_kvcache", lambda k_cache: "ours"
    )
    seam = seams.Seam(
        "sglang.made_up.attend", seams.Kind.AROUND, "guards:attend", "an example"
    )

    # As a plugin.
    module = ModuleType("sglang.made_up")
    exec(_TARGET, vars(module))
    module.attend.__module__ = "sglang.made_up"
    monkeypatch.setitem(sys.modules, "sglang.made_up", module)
    monkeypatch.setattr(sys.modules["sglang"], "made_up", module, raising=False)
    recorded = surface.recorded()
    targets = recorded["targets"] | {seam.target: surface.describe(module.attend)}
    monkeypatch.setattr(surface, "recorded", lambda: recorded | {"targets": targets})
    monkeypatch.setattr(seams, "SEAMS", (seam,))
    monkeypatch.setattr(seams, "_stock", {})
    seams.register()
    HookRegistry.apply_hooks()
    seams.require_installed()
    assert both_ways(signatures.resolve(seam.target)) == ("theirs", "ours")

    # In-tree.
    file = tmp_path / "sglang" / "made_up.py"
    file.parent.mkdir()
    file.write_text(_TARGET)
    edit, _ = edits.edits(tmp_path, [], (seam,))
    tree = edit.site.insert(cst.parse_module(_TARGET))
    for one in edit.imports:
        tree = one.insert(tree)
    text = tree.code
    # There is no such tree to import from: the same modules, by their names here.
    for ours, home in sorted(places.homes().items(), key=lambda pair: -len(pair[1])):
        text = text.replace(home, ours)
    made = {}
    exec(text, made)
    assert both_ways(made["attend"]) == ("theirs", "ours")


def guards(body, first="original", parameters="x"):
    return textwrap.dedent(f"""
        from sglang_dsv4_nvfp4.kv_gate import is_nvfp4_kv_cache
        from sglang_dsv4_nvfp4.layout import kernel_view

        def guard({first}, {parameters}):
        """) + textwrap.indent(textwrap.dedent(body), "    ")


def test_a_guards_statements_bring_their_imports():
    code, imports, parameters = edits.guard_statements(
        "guard",
        guards("""\
            # Why.
            if is_nvfp4_kv_cache():
                from sglang_dsv4_nvfp4.store.dispatch import append

                return append(x, len(x))
            return original()
            """),
    )
    assert code == (
        "# Why.\n"
        "if is_nvfp4_kv_cache():\n"
        "    from sglang.kernels.ops.kvcache.dsv4_nvfp4.dispatch import append\n"
        "\n"
        "    return append(x, len(x))\n"
    )
    gate = "sglang.srt.layers.attention.dsv4.nvfp4_kv_gate"
    assert imports == (toplevel.Import(gate, ("is_nvfp4_kv_cache",)),)
    assert parameters == {"x"}


def test_what_comes_after_keeps_all_its_statements():
    code, _, _ = edits.guard_statements(
        "guard", guards("check(x)\n", "result", "check, x")
    )
    assert code == "check(x)\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return x\n", "does not end with the original"),
        ("if x:\n    return original()\n", "does not end with the original"),
        ("return original(x)\n", "does not end with the original"),
        ("log(x)\nreturn original()\n", "uses log"),
        ("len(original)\nreturn original()\n", "uses original"),
    ],
)
def test_a_guard_that_cannot_stand_in_tree_is_an_error(body, said):
    with pytest.raises(ValueError, match=said):
        edits.guard_statements("guard", guards(body))


def test_a_function_that_takes_something_else_is_named(tmp_path):
    seam = seams.Seam("sglang.made_up.attend", seams.Kind.AROUND, "guards:attend", "")
    file = tmp_path / "sglang" / "made_up.py"
    file.parent.mkdir()
    file.write_text("def attend(q, k_cache):\n    return q\n")
    edit, _ = edits.edits(tmp_path, [], (seam,))
    with pytest.raises(sites.AnchorMissing) as missing:
        edit.site.insert(cst.parse_module(file.read_text()))
    assert str(missing.value) == "attend takes no kwargs"
