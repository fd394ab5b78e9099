"""An SGLang that has the feature itself: one of each module, and no hooks."""

import json
import sys

import pytest
from support.in_tree import copy_sglang
from support.processes import run_python

from sglang_dsv4_nvfp4.intree import aliases, places

pytestmark = pytest.mark.stock_sglang

FORMAT = "SGLANG_SM120_KV_CACHE_FORMAT"

_ASK = """
import json, sys
import sglang_dsv4_nvfp4.cli.doctor
from sglang_dsv4_nvfp4 import plugin
from sglang_dsv4_nvfp4.attention import dispatch, planner
from sglang_dsv4_nvfp4.kernels import nvfp4_rows
plugin.register()
import sglang.kernels.ops.attention.dsv4_nvfp4.dispatch as theirs
assert dispatch is theirs and dispatch.__spec__.name == theirs.__name__
found = {name: module.__name__ for name, module in sys.modules.items()
         if name.startswith("sglang_dsv4_nvfp4")}
registry = sys.modules.get("sglang.srt.plugins.hook_registry")
print(json.dumps([found, sorted(registry.HookRegistry._hooks) if registry else []]))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the installed SGLang with the feature in it."""
    from sglang_dsv4_nvfp4.intree.tree import Tree

    folder = tmp_path_factory.mktemp("tree")
    copy_sglang(folder)
    Tree(folder).apply()
    return folder


def test_the_installed_sglang_has_it_not():
    assert aliases.tree() is None


def test_where_sglang_has_it_our_modules_are_sglangs(tree):
    result = run_python(
        "-c", _ASK, PYTHONPATH=str(tree), **{FORMAT: "nvfp4", "SGLANG_PLUGINS": "other"}
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found, hooks = json.loads(result.stdout.splitlines()[-1])
    assert hooks == []
    homes = places.homes()
    for asked in ("attention", "kernels.nvfp4_rows", "config", "kv_gate"):
        assert f"{places.OURS}.{asked}" in found
    for ours, name in found.items():
        assert name == homes.get(ours, ours)


def test_a_server_refuses_as_the_tree_does(tree):
    """No plugin is asked: SGLang's own check names the device."""
    program = (
        "from sglang.srt.plugins import load_plugins\n"
        "load_plugins()\n"
        "from sglang.srt.layers.attention.dsv4.nvfp4_kv_gate import is_nvfp4_kv_cache\n"
        "from sglang.srt.runtime_context import override_platform\n"
        "override_platform(is_sm120=False).install()\n"
        "print('came up')\n"
        "is_nvfp4_kv_cache()\n"
    )
    result = run_python("-c", program, PYTHONPATH=str(tree), **{FORMAT: "nvfp4"})
    assert "came up" in result.stdout and result.returncode == 1
    assert "ValueError: SGLANG_SM120_KV_CACHE_FORMAT=nvfp4 needs an SM120" in (
        result.stderr
    )


_IMPORTS = """
import json, sys
import sglang.srt.kv_canary.pool_patcher.api
import sglang.srt.mem_cache.kv_cache_configurator
print(json.dumps([name for name in sys.modules if "nvfp4" in name]))
"""


def test_fp8_servers_load_no_kernel_and_no_flashinfer_of_ours(tree):
    result = run_python("-c", _IMPORTS, PYTHONPATH=str(tree))
    assert result.returncode == 0, result.stderr[-3000:]
    loaded = set(json.loads(result.stdout.splitlines()[-1]))
    homes = places.homes()
    assert homes[f"{places.OURS}.mem_cache.token_to_kv_pool"] in loaded
    kept_out = ["attention.flashinfer_backend", "attention.dispatch", "store.fused"]
    kernels = [name for name in homes if name.startswith(f"{places.OURS}.kernels.")]
    for ours in [*kernels, *(f"{places.OURS}.{name}" for name in kept_out)]:
        assert homes[ours] not in loaded


def test_doctor_says_where_it_is(tree):
    program = (
        "import sys; from sglang_dsv4_nvfp4.cli.main import main; main(['doctor'])"
    )
    result = run_python("-c", program, PYTHONPATH=str(tree))
    assert f"NVFP4 is in its own tree, {tree}/sglang" in result.stdout, result.stderr
    assert "seam" not in result.stdout


def test_a_half_done_installation_can_be_finished(tree):
    """The command must not import the tree that it is to mend."""
    machine = tree / places.place(f"{places.OURS}.machine")
    text = machine.read_text()
    machine.unlink()
    program = (
        "import sys; from sglang_dsv4_nvfp4.cli.main import main\n"
        f"sys.exit(main(['intree', 'apply', '--tree', {str(tree)!r}]))"
    )
    result = run_python("-c", program, PYTHONPATH=str(tree))
    assert result.returncode == 0, result.stderr[-3000:]
    assert machine.read_text() == text


def test_an_import_that_is_not_ours_passes_through(monkeypatch):
    finder = aliases._Finder()
    assert finder.find_spec("sglang_dsv4_nvfp4.seams", None) is None
    assert finder.find_spec("torch", None) is None
    assert sys.meta_path[0].__class__ is not aliases._Finder
