"""The command, over SGLang's own files: apply, check, diff, revert."""

import hashlib
import shutil
import subprocess

import pytest

from sglang_dsv4_nvfp4.cli.main import main
from sglang_dsv4_nvfp4.intree import places

pytestmark = pytest.mark.stock_sglang

ENVIRON = "python/sglang/srt/environ.py"
NEW = "python/sglang/kernels/ops/attention/dsv4_nvfp4/layout.py"


def intree(action, folder, *options):
    return main(["intree", action, "--tree", str(folder), *options])


def contents(folder):
    return {
        path.relative_to(folder)
        .as_posix(): hashlib.sha256(path.read_bytes())
        .hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_apply_twice_and_revert(checkout, edited_files, capsys):
    before = contents(checkout)
    assert intree("apply", checkout) == 0
    said = capsys.readouterr().out
    applied = contents(checkout)
    new = {f"python/{path}" for path in places.places().values()}
    assert applied.keys() - before.keys() == new
    changed = {path for path in before if applied[path] != before[path]}
    assert changed == {f"python/{file}" for file in edited_files}
    for path in [*edited_files, *places.places().values()]:
        assert f"{path}: " in said

    assert intree("apply", checkout) == 0
    assert contents(checkout) == applied
    assert "0 of SGLang's files and 0 of ours changed" in capsys.readouterr().out

    assert intree("revert", checkout) == 0
    assert contents(checkout) == before
    folders = {path for path in checkout.rglob("*") if path.is_dir()}
    assert not any(path.name == "dsv4_nvfp4" for path in folders)
    assert intree("revert", checkout) == 0
    assert contents(checkout) == before


def test_check_says_what_would_change_and_writes_nothing(checkout, capsys):
    before = contents(checkout)
    assert intree("apply", checkout, "--check") == 0
    said = capsys.readouterr().out
    assert "sglang/srt/environ.py: " in said and "nothing was written" in said
    assert contents(checkout) == before


def test_every_missing_anchor_is_named_and_nothing_is_written(checkout, capsys):
    packages = checkout / "python" / "sglang"
    (packages / "kernels/ops/attention/flash_mla_sm120.py").unlink()
    for file, old, new in (
        ("srt/environ.py", "SGLANG_DSV4_COMPRESSED_KV_LAYOUT =", "SGLANG_RENAMED ="),
        ("kernels/ops/attention/dsv4/compress.py", "page_size: int", "size: int"),
        (
            "srt/mem_cache/kv_cache_configurator.py",
            "pool_cls = DeepSeekV4TokenToKVPool",
            "pool_cls = choose()",
        ),
        ("srt/kv_canary/pool_patcher/api.py", "_POOL_ATTACHERS:", "_ATTACHERS:"),
        ("srt/arg_groups/deepseek_v4_hook.py", "def apply_deepseek_v4", "def do"),
        (
            "srt/model_executor/pool_configurator.py",
            "class DSV4PoolConfigurator",
            "class class",
        ),
    ):
        path = packages / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    before = contents(checkout)
    for options in (["--check"], []):
        assert intree("apply", checkout, *options) == 1
        said = capsys.readouterr()
        for named in (
            "flash_mla_sm120.flash_mla_with_kvcache_sm120",
            "srt/environ.py: no Envs.SGLANG_DSV4_COMPRESSED_KV_LAYOUT",
            "compress_norm_rope_store takes no page_size",
            "_build_dsv4_kv_pool: pool_cls = DeepSeekV4TokenToKVPool",
            "api.py: no dictionary _POOL_ATTACHERS",
            "deepseek_v4_hook.py: no apply_deepseek_v4_defaults",
            "pool_configurator.py: Syntax Error",
        ):
            assert named in said.err
        assert "Traceback" not in said.err and not said.out
        assert contents(checkout) == before


@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1", "--input"]])
def test_the_patch_does_what_apply_does(checkout, tmp_path, capsys, tool):
    if shutil.which(tool[0]) is None:
        pytest.skip(f"needs {tool[0]}")
    before = contents(checkout)
    assert intree("diff", checkout) == 0
    patch = tmp_path / "nvfp4.patch"
    patch.write_text(capsys.readouterr().out)
    assert contents(checkout) == before
    other = tmp_path / "other"
    shutil.copytree(checkout, other)
    subprocess.run([*tool, str(patch)], cwd=other, check=True, capture_output=True)
    assert intree("apply", checkout) == 0
    assert contents(other) == contents(checkout)
    # A tree that has it gives the same patch.
    capsys.readouterr()
    assert intree("diff", checkout) == 0
    assert capsys.readouterr().out == patch.read_text()


def test_what_stopped_half_way_is_finished_or_undone(checkout):
    before = contents(checkout)
    intree("apply", checkout)
    applied = contents(checkout)
    shutil.rmtree(checkout / "python/sglang/srt/mem_cache/dsv4_nvfp4")
    half = checkout.with_name("half")
    shutil.copytree(checkout, half)
    assert intree("apply", checkout) == 0 and contents(checkout) == applied
    assert intree("revert", half) == 0 and contents(half) == before


def test_what_cannot_be_written_is_named_and_can_be_finished(checkout, capsys):
    before = contents(checkout)
    # Something else lies where a folder of ours goes.
    obstacle = checkout / "python/sglang/srt/mem_cache/dsv4_nvfp4"
    obstacle.write_text("")
    assert intree("apply", checkout) == 1
    said = capsys.readouterr().err
    assert str(obstacle) in said and "can be finished, or undone" in said
    obstacle.unlink()
    assert intree("apply", checkout) == 0
    assert intree("revert", checkout) == 0
    assert contents(checkout) == before


def test_lines_of_others_survive(checkout):
    intree("apply", checkout)
    path = checkout / ENVIRON
    line = "    SGLANG_THEIR_OWN = EnvBool(False)\n"
    anchor = '    SGLANG_SM120_NVFP4_KERNEL = EnvStr("")\n'
    assert anchor in path.read_text()
    end = "    SGLANG_DSV4_UNIFIED_KV_FP8 = EnvBool(False)\n"
    assert end in path.read_text()
    path.write_text(path.read_text().replace(end, end + line))
    assert intree("revert", checkout) == 0
    assert line in path.read_text() and anchor not in path.read_text()


@pytest.mark.parametrize("action", ["apply", "revert"])
def test_a_file_of_ours_that_was_changed_is_not_lost(checkout, capsys, action):
    intree("apply", checkout)
    (checkout / NEW).write_text("# edited\n")
    before = contents(checkout)
    assert intree(action, checkout) == 1
    assert "dsv4_nvfp4/layout.py is a file that is not this version's" in (
        capsys.readouterr().err
    )
    assert contents(checkout) == before


# What a user may have made of each thing that was brought in.
EDITED = {
    "kernels/ops/attention/flash_mla_sm120.py": ("The last dimension", "This"),
    "kernels/ops/attention/dsv4/compress.py": (
        "        return\n    layout =",
        "    layout =",
    ),
    "srt/arg_groups/deepseek_v4_hook.py": (
        "        check_nvfp4_server_args(server_args)",
        "        check_nvfp4_server_args(server_args=server_args)",
    ),
    "srt/environ.py": ('FORMAT = EnvStr("fp8")', 'FORMAT = EnvStr("nvfp4")'),
    "srt/kv_canary/pool_patcher/api.py": (
        "DeepSeekV4NVFP4TokenToKVPool: attach_dsv4_nvfp4",
        "DeepSeekV4NVFP4TokenToKVPool: attach_dsv4",
    ),
    "srt/mem_cache/hybrid_cache/hybrid_cache_controller.py": (
        "        # NVFP4 pools only",
        "        # Only NVFP4 pools",
    ),
    "srt/mem_cache/kv_cache_configurator.py": (
        "pool_cls = DeepSeekV4NVFP4TokenToKVPool",
        "pool_cls = DeepSeekV4NVFP4TokenToKVPool  # ours",
    ),
    "srt/model_executor/pool_configurator.py": ("No page is padded", "No padding"),
}


@pytest.mark.parametrize("file", EDITED)
@pytest.mark.parametrize("action", ["apply", "revert"])
def test_what_was_edited_is_neither_doubled_nor_left(checkout, capsys, action, file):
    intree("apply", checkout)
    path = checkout / "python/sglang" / file
    old, new = EDITED[file]
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    before = contents(checkout)
    assert intree(action, checkout) == 1
    assert f"sglang/{file} has a " in capsys.readouterr().err
    assert contents(checkout) == before


def test_every_file_can_be_edited_by_a_user(edited_files):
    assert {f"sglang/{file}" for file in EDITED} == set(edited_files)


def test_code_beside_it_that_uses_what_we_import_is_not_broken(checkout, capsys):
    intree("apply", checkout)
    path = checkout / "python/sglang/srt/model_executor/pool_configurator.py"
    path.write_text(path.read_text() + "\nIS_NVFP4 = is_nvfp4_kv_cache\n")
    before = contents(checkout)
    # All is there: nothing to do.
    assert intree("apply", checkout) == 0 and contents(checkout) == before
    assert intree("revert", checkout) == 1 and contents(checkout) == before
    assert "has a is_nvfp4_kv_cache" in capsys.readouterr().err


def test_revert_needs_no_anchor(checkout):
    intree("apply", checkout)
    path = checkout / ENVIRON
    text = path.read_text().replace("SGLANG_DSV4_COMPRESSED_KV_LAYOUT =", "RENAMED =")
    path.write_text(text)
    assert intree("revert", checkout) == 0
    assert "SGLANG_SM120_KV_CACHE_FORMAT" not in path.read_text()
    assert not (checkout / NEW).exists()


@pytest.mark.parametrize("inside", ["python", "python/sglang"])
def test_a_package_is_found_however_it_is_pointed_at(checkout, inside, capsys):
    whole = contents(checkout)
    assert intree("apply", checkout / inside) == 0
    assert intree("revert", checkout) == 0
    assert contents(checkout) == whole
    assert intree("diff", checkout / inside) == 0
    assert "+++ b/sglang/srt/environ.py" in capsys.readouterr().out


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_sglang_is_named(tmp_path, capsys, exists):
    folder = tmp_path if exists else tmp_path / "nowhere"
    assert intree("apply", folder) == 1
    assert f"{folder} is no SGLang checkout or package" in capsys.readouterr().err


def test_another_version_is_told(checkout, capsys):
    version = checkout / "python/sglang/_version.py"
    version.write_text(version.read_text().replace("0.5.23", "0.6.0"))
    assert intree("apply", checkout, "--check") == 0
    assert "this is SGLang 0.6.0" in capsys.readouterr().err
    version.unlink()
    assert intree("apply", checkout, "--check") == 0
    assert "this is SGLang" not in capsys.readouterr().err


def test_without_libcst_the_extra_is_named(monkeypatch, checkout, capsys):
    import sys

    for name in [
        name for name in sys.modules if name.startswith(f"{places.OURS}.intree.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert intree("apply", checkout) == 1
    assert "pip install 'sglang-dsv4-nvfp4[intree]'" in capsys.readouterr().err
