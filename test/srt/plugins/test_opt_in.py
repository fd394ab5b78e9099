"""Unset or fp8, the plugin is not there. Fresh processes: imports are the subject."""

import json

import pytest
from support.processes import run_python

pytestmark = pytest.mark.stock_sglang

FORMAT = "SGLANG_SM120_KV_CACHE_FORMAT"

_IMPORT_PLUGIN = """
import json, sys
from sglang_dsv4_nvfp4.plugin import register
register()
print(json.dumps(sorted(
    name for name in sys.modules
    if name == "torch" or name.startswith("sglang.")
)))
"""

_LOAD_PLUGINS = """
import json
from importlib.metadata import entry_points
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
names = [point.name for point in entry_points(group="sglang.srt.plugins")]
load_plugins()
ours = sorted(
    target
    for target, hooks in HookRegistry._hooks.items()
    if any(source.dist_name == "sglang-dsv4-nvfp4" for _, _, source in hooks)
)
print(json.dumps({"names": names, "hooks": sorted(HookRegistry._hooks), "ours": ours}))
"""

_LOAD_PLUGINS_ON_SM120 = """
from sglang.srt.runtime_context import override_platform
override_platform(is_sm120=True).install()
""" + _LOAD_PLUGINS


@pytest.mark.parametrize("environment", [{}, {FORMAT: "fp8"}, {FORMAT: ""}])
def test_plugin_imports_neither_torch_nor_sglang(environment):
    result = run_python("-c", _IMPORT_PLUGIN, **environment)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == []


@pytest.mark.parametrize("environment", [{}, {FORMAT: "fp8"}])
def test_load_plugins_leaves_the_hook_table_empty(environment):
    # SGLang's own dependencies bring a plugin too; this one is loaded alone.
    result = run_python("-c", _LOAD_PLUGINS, SGLANG_PLUGINS="dsv4_nvfp4", **environment)
    assert result.returncode == 0, result.stderr
    loaded = json.loads(result.stdout)
    # The plugin was there to be found: it is the format that kept it out.
    assert "dsv4_nvfp4" in loaded["names"]
    assert loaded["hooks"] == []


def test_beside_other_plugins_nothing_in_the_hook_table_is_ours():
    result = run_python("-c", _LOAD_PLUGINS)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["ours"] == []


def test_load_plugins_hooks_every_seam_when_asked_for_nvfp4():
    from sglang_dsv4_nvfp4.seams import SEAMS

    result = run_python("-c", _LOAD_PLUGINS_ON_SM120, **{FORMAT: "nvfp4"})
    assert result.returncode == 0, result.stderr
    ours = json.loads(result.stdout.splitlines()[-1])["ours"]
    assert ours == sorted(seam.target for seam in SEAMS if seam.kind.is_hook)
