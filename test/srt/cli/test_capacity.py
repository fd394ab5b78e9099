"""``sglang-dsv4-nvfp4 capacity``: as a user runs it, and against the budget it states."""

import json
import re

import pytest
from support.models import write_v4_flash_config
from support.processes import COMMAND, run_python

from sglang_dsv4_nvfp4.cli.capacity import GIB
from sglang_dsv4_nvfp4.cli.main import main
from sglang_dsv4_nvfp4.cli.models import PAGE_SIZE, V4_FLASH


@pytest.fixture
def capacity(device, tmp_path, capsys):
    """``capacity("--option ...")``: its exit status, result and output."""

    def ask(options):
        path = tmp_path / "capacity.json"
        status = main(["capacity", *options.split(), "--json", str(path)])
        result = json.loads(path.read_text()) if status == 0 else None
        return status, result, capsys.readouterr()

    return ask


def test_the_command_prints_what_it_writes(tmp_path):
    path = tmp_path / "capacity.json"
    options = ["--kv-gib", "32", "--tp-size", "4", "--dp-size", "4", "--mtp"]
    ran = run_python(COMMAND, "capacity", *options, "--json", str(path))
    assert ran.returncode == 0, ran.stderr
    result = json.loads(path.read_text())
    assert "attention TP 1, attention DP 4, MTP" in ran.stdout
    for one in result["formats"].values():
        assert one["tokens_of_all_ranks"] == 4 * one["tokens"]
        for key in ("tokens", "tokens_of_all_ranks"):
            assert f"{one[key]:,}" in ran.stdout
    fp8, nvfp4 = (result["formats"][name]["tokens"] for name in ("fp8", "nvfp4"))
    assert f"{nvfp4 / fp8:.2f}x" in ran.stdout and nvfp4 > 1.4 * fp8
    (pinned,) = re.findall(r"--max-total-tokens (\d+)", ran.stdout)
    assert int(pinned) == result["max_total_tokens"] == fp8


@pytest.mark.parametrize(
    "options",
    [
        "--kv-gib 40",
        "--kv-gib 40 --model v4-pro",
        "--kv-gib 40 --tp-size 8 --enable-prefill-cp",
        "--kv-gib 40 --pp-size 4",
        "--kv-gib 40 --pp-size 2 --mtp --max-running-requests 64",
    ],
)
def test_tokens_fill_the_budget_and_no_more(capacity, options):
    status, result, _ = capacity(options)
    assert status == 0
    for one in result["formats"].values():
        assert one["tokens"] % PAGE_SIZE == 0
        taken = one["tokens"] * one["bytes_per_token"] + one["window_pool_bytes"]
        # What is left are the c128 compressors' states, of which a request has one.
        left = result["kv_bytes_per_rank"] - taken
        assert 0 <= left < 0.1 * result["kv_bytes_per_rank"]
    assert result["max_total_tokens"] == min(
        one["tokens"] for one in result["formats"].values()
    )


def test_gpus_that_share_heads_or_prefills_hold_the_same(capacity):
    """One latent serves all heads, so every rank of a stage holds every token."""
    _, alone, _ = capacity("--kv-gib 40")
    for options in ("--tp-size 4", "--tp-size 4 --enable-prefill-cp"):
        _, shared, _ = capacity(f"--kv-gib 40 {options}")
        assert shared["formats"] == alone["formats"]


def test_a_stage_holds_more_than_the_whole(capacity):
    _, whole, _ = capacity("--kv-gib 40")
    _, staged, _ = capacity("--kv-gib 40 --pp-size 4")
    for name, one in staged["formats"].items():
        assert one["tokens"] > 3 * whole["formats"][name]["tokens"]


def test_a_config_file_counts_its_layers_without_the_drafts(capacity, tmp_path):
    write_v4_flash_config(tmp_path)
    _, built_in, _ = capacity("--kv-gib 40")
    for model in (tmp_path, tmp_path / "config.json"):
        _, read, _ = capacity(f"--kv-gib 40 --model {model}")
        assert read["formats"] == built_in["formats"]


def test_a_config_file_without_ratios_is_refused(capacity, tmp_path):
    write_v4_flash_config(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["compress_ratios"]
    path.write_text(json.dumps(config))
    status, _, output = capacity(f"--kv-gib 40 --model {tmp_path}")
    assert status == 1
    assert f"--model {tmp_path}: its config.json has no compress_ratios" in output.err


def test_a_gpu_less_its_weights_is_the_budget(capacity, tmp_path):
    write_v4_flash_config(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 160 * GIB}}))
    options = "--gpu-gib 96 --mem-fraction-static 0.875 --tp-size 2 --pp-size 2"
    _, result, _ = capacity(f"{options} --model {tmp_path}")
    assert result["kv_bytes_per_rank"] == (96 * 0.875 - 160 / 4) * GIB
    _, result, _ = capacity(f"{options} --weights-gib 50")
    assert result["kv_bytes_per_rank"] == (96 * 0.875 - 50) * GIB


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--model /no/such --kv-gib 9", "--model /no/such: neither v4-flash"),
        ("--gpu-gib 96", "needs the weights' size: no model.safetensors.index.json"),
        ("--kv-gib 9 --weights-gib 3", "--weights-gib goes with --gpu-gib"),
        ("--gpu-gib 40 --weights-gib 39", "leaves nothing beside 39.0 GiB of weights"),
        ("--kv-gib 9 --tp-size 4 --dp-size 3", "--dp-size 3 does not divide"),
        (
            "--kv-gib 9 --tp-size 4 --dp-size 4 --enable-prefill-cp",
            "--enable-prefill-cp takes the whole TP group",
        ),
        ("--kv-gib 9 --pp-size 44", f"more than {len(V4_FLASH.compress_ratios)} layer"),
        ("--kv-gib 1", "fp8: The DSV4 SWA pool cap .* leaves no room"),
    ],
)
def test_questions_without_an_answer_are_named(capacity, options, said):
    status, _, output = capacity(options)
    assert status == 1
    (line,) = output.err.strip().splitlines()[-1:]
    assert re.search(said, line) and line.startswith("sglang-dsv4-nvfp4 capacity: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "one of the arguments --kv-gib --gpu-gib is required"),
        ("--kv-gib 9 --gpu-gib 9", "not allowed with"),
        ("--kv-gib -1", "-1 is not positive"),
        ("--kv-gib 9 --tp-size 0", "0 is not positive"),
        ("--gpu-gib 9 --mem-fraction-static 1.5", "1.5 is more than 1"),
    ],
)
def test_bad_options_are_named(capacity, capsys, options, said):
    with pytest.raises(SystemExit):
        main(["capacity", *options.split()])
    assert said in capsys.readouterr().err
