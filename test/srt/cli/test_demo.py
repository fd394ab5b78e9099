"""``sglang-dsv4-nvfp4 demo``: run as a user runs it, and read what it wrote."""

import json
import runpy
from pathlib import Path

import pytest
from support.processes import COMMAND, run_python

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "demo.json"
    result = run_python(COMMAND, "demo", "--json", str(path))
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads(path.read_text())


def test_formats_and_capacity(demo):
    _, report = demo
    formats = report["formats"]
    assert formats["fp8"]["bytes_per_token"] == 584
    assert formats["nvfp4"]["bytes_per_token"] == 384
    tokens = {name: formats[name]["tokens_in_budget"] for name in formats}
    assert report["capacity_ratio"] == tokens["nvfp4"] / tokens["fp8"] > 1.4


def test_every_layer_kind_is_compared(demo):
    _, report = demo
    assert [layer["compress_ratio"] for layer in report["layers"]] == [0, 4, 128]
    for layer in report["layers"]:
        # FP8 keeps 4 bits of each value and NVFP4 2: both close, FP8 closer.
        assert 1 > layer["fp8_cosine"] > layer["nvfp4_cosine"] > 0.99
        assert 0 < layer["fp8_rel_error"] < layer["nvfp4_rel_error"] < 0.15


def test_it_says_what_ran_and_where(demo):
    _, report = demo
    assert report["backend"] in ("torch", "flashinfer")
    assert report["device"]


def test_the_table_shows_the_reports_numbers(demo):
    stdout, report = demo
    for kv_format in report["formats"].values():
        assert f"{kv_format['tokens_in_budget']:,}" in stdout
        assert str(kv_format["bytes_per_token"]) in stdout
    for layer in report["layers"]:
        for key in ("fp8_cosine", "nvfp4_cosine"):
            assert f"{layer[key]:.6f}" in stdout
    assert f"attention backend: {report['backend']}" in stdout
    assert f"device: {report['device']}" in stdout


def test_pages_show_their_data_files_figures():
    render = runpy.run_path(str(ROOT / "docs" / "render_tables.py"))
    for page in render["PAGES"]:
        assert render["rendered"](page) == page.read_text(), page


def test_the_demo_still_gives_the_readmes_data(demo):
    _, report = demo
    data = json.loads((ROOT / "benchmark/demo/results/cpu.json").read_text())
    assert report["formats"] == data["formats"]
    for layer, recorded in zip(report["layers"], data["layers"], strict=True):
        for key, value in recorded.items():
            # The CPUs of two machines sum in other orders.
            assert layer[key] == pytest.approx(value, rel=1e-3), key


def test_json_into_no_directory_is_refused_before_the_work():
    result = run_python(COMMAND, "demo", "--json", "/no/such/folder/demo.json")
    assert result.returncode == 2
    assert "/no/such/folder is no directory" in result.stderr
