"""``sglang-dsv4-nvfp4 doctor``: findings, remedies, exit status."""

import importlib.metadata
import json

import pytest
import torch

from sglang_dsv4_nvfp4.attention.decision import Decision, Phase
from sglang_dsv4_nvfp4.attention.profile import Profile
from sglang_dsv4_nvfp4.cli import doctor
from sglang_dsv4_nvfp4.cli.main import main
from sglang_dsv4_nvfp4.config import Kernel
from sglang_dsv4_nvfp4.machine import versions


@pytest.fixture(autouse=True)
def no_profile(monkeypatch, tmp_path):
    """The machine's own profile is nobody's business here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def elsewhere(device):
    """A machine whose device SGLang does not take for an SM120."""
    from sglang.srt.runtime_context import override_platform

    with override_platform(is_sm120=False):
        yield


def findings(report):
    return {check["name"]: check for check in report["checks"]}


def test_all_is_well_on_an_sm120(device, tmp_path, capsys):
    path = tmp_path / "doctor.json"
    assert main(["doctor", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert report["ok"] and all(check["ok"] for check in report["checks"])
    for name in ("sglang", "flashinfer-python", "torch"):
        assert report["versions"][name] == importlib.metadata.version(name)
    output = capsys.readouterr().out
    assert "serves NVFP4" in output and "!!" not in output


@pytest.mark.stock_sglang
def test_each_seam_is_reported(device):
    from sglang_dsv4_nvfp4.seams import SEAMS

    details = [check["detail"] for check in doctor.examine()["checks"]]
    for seam in SEAMS:
        assert f"{seam.target} fits ({seam.purpose})" in details


@pytest.mark.stock_sglang
def test_another_sglang_is_reported(device, monkeypatch):
    from sglang_dsv4_nvfp4 import seams

    monkeypatch.setattr(seams, "distribution_version", lambda name: "0.5.99")
    check = findings(doctor.examine())["sglang"]
    assert not check["ok"] and "0.5.99" in check["detail"]
    assert check["remedy"] == "pip install sglang==0.5.23"


def test_another_device_is_not_well_and_says_what_to_do(elsewhere, capsys):
    assert main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert "[!!] device" in output and "SM120" in output and "mend:" in output
    assert "would not serve NVFP4" in output


@pytest.mark.stock_sglang
def test_a_misfit_seam_is_reported(device, monkeypatch):
    from sglang_dsv4_nvfp4 import seams

    monkeypatch.setitem(seams._stock, seams.ATTENTION, lambda q, k: None)
    report = doctor.examine()
    (check,) = [check for check in report["checks"] if not check["ok"]]
    assert check["name"] == "seam" and "(q, k)" in check["detail"]
    assert check["remedy"] == "pip install sglang==0.5.23"


def test_an_unknown_format_is_reported(device, monkeypatch):
    monkeypatch.setenv("SGLANG_SM120_KV_CACHE_FORMAT", "int3")
    check = findings(doctor.examine())["environment"]
    assert not check["ok"] and "'int3'" in check["detail"]


@pytest.mark.stock_sglang
def test_a_whitelist_that_leaves_the_plugin_out_is_reported(device, monkeypatch):
    monkeypatch.setenv("SGLANG_PLUGINS", "something_else")
    check = findings(doctor.examine())["plugin"]
    assert not check["ok"] and "FP8" in check["detail"]
    monkeypatch.setenv("SGLANG_PLUGINS", "something_else, dsv4_nvfp4")
    assert findings(doctor.examine())["plugin"]["ok"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SGLANG_SM120_FLASHMLA_BACKEND", "cutlass"),
        ("SGLANG_SM120_NVFP4_KERNEL", "fast"),
        ("SGLANG_SM120_NVFP4_CHECK_INDICES", "yes"),
        ("SGLANG_SM120_NVFP4_STORE", "eager"),
        ("SGLANG_SM120_NVFP4_SCALE_RULE", "amax8"),
    ],
)
def test_unserved_values_are_reported(device, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    check = findings(doctor.examine())["kernel"]
    assert not check["ok"] and variable in check["detail"] and value in check["detail"]


def test_a_profile_of_another_device_is_reported(device, monkeypatch, tmp_path):
    path = tmp_path / "profile.json"
    Profile(device="NVIDIA Other", versions=versions()).write(path)
    monkeypatch.setenv("SGLANG_SM120_NVFP4_PROFILE", str(path))
    check = findings(doctor.examine())["profile"]
    assert check["ok"] and "ignored" in check["detail"]
    assert "NVIDIA Other" in check["detail"]
    assert "tune" in check["remedy"]


def test_a_missing_profile_is_well_but_tune_is_named(device):
    check = findings(doctor.examine())["profile"]
    assert check["ok"] and "tune" in check["remedy"]


def test_decisions_are_listed_on_an_sm120(device, monkeypatch, capsys):
    """The planner's own, for decode, the boundary at 64, and prefill."""
    asked = []

    def plan(self, shape, device, kernel):
        asked.append(shape)
        return Decision(Kernel.CAKE, Phase.PREFILL, head_tiles=2)

    monkeypatch.setattr(doctor.Planner, "plan", plan)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (12, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA RTX")
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert {shape.num_tokens for shape in asked} == {1, 64, 65, 8192}
    assert {shape.num_heads for shape in asked} == {64, 16}
    assert output.count("cake/prefill, chunks 1, head tiles 2") == len(asked)
