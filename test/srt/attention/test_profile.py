"""The kernel profile as a file: what fits, what is ignored, what is lost (nothing)."""

import json
import logging
import re

import pytest

from sglang_dsv4_nvfp4.attention import profile
from sglang_dsv4_nvfp4.attention.decision import Decision, Phase
from sglang_dsv4_nvfp4.attention.inputs import AttentionShape
from sglang_dsv4_nvfp4.attention.profile import Profile, Row
from sglang_dsv4_nvfp4.config import Kernel
from sglang_dsv4_nvfp4.machine import device_name, versions

ROW = Row(
    AttentionShape(8, 64, 128, 64, 512, 64),
    Decision(Kernel.CAKE, Phase.DECODE, 3, 2),
    us=12.5,
    spread_us=0.25,
)


@pytest.fixture
def path(monkeypatch, tmp_path):
    path = tmp_path / "deep" / "profile.json"
    monkeypatch.setenv("SGLANG_SM120_NVFP4_PROFILE", str(path))
    return path


def made(**changes):
    whole = dict(device=device_name(), versions=versions(), rows=[ROW])
    return Profile(**{**whole, **changes})


def test_a_profile_comes_back_as_it_was(path):
    made().write(path)
    assert profile.read(path) == made()
    assert profile.load() == made()
    assert [left.name for left in path.parent.iterdir()] == [path.name]


def test_the_file_is_the_documented_one(path):
    made().write(path)
    content = json.loads(path.read_text())
    assert content.keys() == {"device", "versions", "date", "rows"}
    (row,) = content["rows"]
    assert row["kernel"] == "cake" and row["us"] == 12.5 and row["head_tiles"] == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "NVIDIA Other"}, "NVIDIA Other"),
        ({"versions": {**versions(), "triton": "0.1"}}, "triton 0.1"),
        ({"versions": {}}, "flashinfer-jit-cache|flashinfer-python|sglang"),
    ],
)
def test_another_device_or_version_is_ignored_with_a_warning(
    path, caplog, changes, reason
):
    made(**changes).write(path)
    with caplog.at_level(logging.WARNING):
        assert profile.load() is None
    (record,) = caplog.records
    assert "ignored" in record.getMessage() and "tune" in record.getMessage()
    assert re.search(reason, record.getMessage())


@pytest.mark.parametrize("content", ["", "[]", "{", '{"device": "x"}'])
def test_a_broken_file_is_ignored_and_named(path, caplog, content):
    path.parent.mkdir()
    path.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert profile.load() is None
    assert str(path) in caplog.text and "tune" in caplog.text


def test_a_named_file_that_is_missing_is_said(path, caplog):
    with caplog.at_level(logging.WARNING):
        assert profile.load() is None
    assert str(path) in caplog.text


def test_no_profile_at_the_usual_place_is_no_event(monkeypatch, tmp_path, caplog):
    monkeypatch.delenv("SGLANG_SM120_NVFP4_PROFILE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert profile.load() is None
    assert not caplog.records


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
    made().write(path)
    monkeypatch.setattr(profile.json, "dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made(rows=[]).write(path)
    monkeypatch.undo()
    assert profile.read(path).rows == [ROW]


def test_of_widths_that_were_not_measured_the_nearest_counts():
    wide = ROW.shape._replace(extra_topk=4096, extra_page_size=2)
    narrow = ROW.shape._replace(extra_topk=64, extra_page_size=2)
    other = Decision(Kernel.SPARSE, Phase.DECODE, 0)
    rows = [
        Row(shape, decision, us, 0.0)
        for shape, times in ((wide, (9.0, 3.0)), (narrow, (1.0, 2.0)))
        for decision, us in zip((ROW.decision, other), times, strict=True)
    ]
    measured = made(rows=rows)
    choices = [ROW.decision, other]
    assert measured.best(wide._replace(extra_topk=2048), choices) is other
    assert measured.best(narrow._replace(extra_topk=128), choices) is ROW.decision
