"""``sglang-dsv4-nvfp4 tune``: what it asks for, writes, and goes on with.

A stand-in takes the place of the stopwatch: the CPU has nothing to time here.
"""

import json

import pytest
import torch
from triton.errors import TritonError

from sglang_dsv4_nvfp4.attention import profile, torch_backend
from sglang_dsv4_nvfp4.attention.profile import Profile
from sglang_dsv4_nvfp4.cli import tune
from sglang_dsv4_nvfp4.cli.main import main
from sglang_dsv4_nvfp4.cli.models import V4_FLASH, model_facts
from sglang_dsv4_nvfp4.config import Kernel
from sglang_dsv4_nvfp4.machine import device_name, versions


@pytest.fixture
def elsewhere(device):
    """Only Triton is eligible off SM120."""
    from sglang.srt.runtime_context import override_platform

    with override_platform(is_sm120=False):
        yield


@pytest.fixture
def path(tmp_path):
    return tmp_path / "profile.json"


def fresh():
    return Profile(device=device_name(), versions=versions())


def shapes(tokens=(1, 64), heads=(64,)):
    return list(tune.shapes_of(V4_FLASH, heads, tokens))


def test_a_machine_without_a_gpu_says_so(monkeypatch, capsys):
    monkeypatch.setattr(tune.torch.cuda, "is_available", lambda: False)
    assert main(["tune"]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err


def test_the_boundary_at_64_is_dense():
    assert {63, 64, 65, 72, 96} <= set(tune.TOKENS)
    assert min(tune.TOKENS) == 1 and max(tune.TOKENS) == 8192


def test_shapes_are_the_models():
    asked = shapes()
    assert {shape.extra_topk for shape in asked} == {0, 512, 64, 4096}
    pages = {(shape.extra_topk, shape.extra_page_size) for shape in asked}
    assert pages == {(0, 0), (512, 64), (64, 2), (512, 2), (4096, 2)}
    assert all(shape.topk == 128 for shape in asked)


def test_everything_is_measured_and_written_at_once(elsewhere, path, capsys):
    seen = []

    def time_decision(shape, decision):
        written = len(profile.read(path).rows) if path.exists() else 0
        seen.append(written)
        return tune.Timing(us=10.0 * shape.num_tokens, spread_us=0.5)

    tune.tune(fresh(), path, shapes(), time_decision)
    assert seen == list(range(len(shapes())))
    rows = profile.read(path).rows
    assert {row.decision.kernel for row in rows} == {Kernel.TRITON}
    progress = capsys.readouterr().out
    assert f"[1/{len(shapes())} " in progress and "640.0 us" in progress


def test_an_interrupted_run_goes_on(elsewhere, path):
    def until_third(shape, decision, calls=[]):  # noqa: B006
        calls.append(shape)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return tune.Timing(1.0, 0.0)

    with pytest.raises(KeyboardInterrupt):
        tune.tune(fresh(), path, shapes(), until_third)
    assert len(profile.read(path).rows) == 2

    measured = []

    def the_rest(shape, decision):
        measured.append(shape)
        return tune.Timing(2.0, 0.0)

    tune.tune(profile.read(path), path, shapes(), the_rest)
    assert measured == shapes()[2:]
    assert len(profile.read(path).rows) == len(shapes())


def test_a_kernel_that_fails_is_named_and_noted(elsewhere, path, capsys):
    """However it fails: Triton's errors derive from Exception alone."""

    def time_decision(shape, decision):
        if shape.num_tokens == 64:
            raise TritonError("out of resource: shared memory")
        return tune.Timing(1.0, 0.0)

    tune.tune(fresh(), path, shapes(), time_decision)
    made = profile.read(path)
    assert {row.us for row in made.rows if row.shape.num_tokens == 64} == {None}
    (triton,) = {row.decision for row in made.rows if row.shape.num_tokens == 64}
    assert made.best(shapes()[1], [triton]) is None
    assert made.best(shapes()[0], [triton]) is triton
    printed = capsys.readouterr().out
    assert "failed (TritonError: out of resource: shared memory)" in printed


def test_starting_anew_keeps_what_was_there(path, capsys):
    whole = fresh()
    whole.write(path)
    assert tune._profile_to_go_on_with(path, restart=True).rows == []
    assert profile.read(path.with_suffix(".old.json")) == whole
    assert str(path.with_suffix(".old.json")) in capsys.readouterr().out


def test_inputs_are_rows_of_a_normal_size(elsewhere, monkeypatch):
    """What is timed must be what is served: finite, and a softmax over many."""
    monkeypatch.setattr(tune, "_POOL_BYTES", 64 * 64 * 384)
    monkeypatch.setattr(tune, "_DISTINCT_ROWS", 64 * 32)
    bench = tune.Bench(torch.device("cpu"))
    (shape,) = [made for made in shapes(tokens=(4,)) if made.extra_page_size == 64]
    inputs = bench.inputs(shape)
    output, lse = torch_backend.torch_mla(inputs)
    assert output.isfinite().all() and lse.isfinite().all()
    # One candidate with all the weight would put its row, of norm 22, out.
    assert output.float().norm(dim=-1).max() < 8
    for part in (inputs.main, inputs.extra):
        assert int(part.indices.max()) < part.cache.shape[0] * part.cache.shape[1]


def test_a_profile_that_does_not_fit_is_kept_aside(path, capsys):
    other = Profile(device="NVIDIA Other", versions=versions())
    other.write(path)
    begun = tune._profile_to_go_on_with(path, restart=False)
    assert begun.rows == [] and begun.device == device_name()
    assert profile.read(path.with_suffix(".old.json")) == other
    assert "NVIDIA Other" in capsys.readouterr().out


def test_facts_of_a_configuration(tmp_path):
    config = dict(
        num_attention_heads=128,
        index_topk=1024,
        max_position_embeddings=4096,
        sliding_window=128,
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    for place in (tmp_path, tmp_path / "config.json"):
        facts = model_facts(str(place))
        assert facts.num_heads == 128 and facts.index_topk == 1024
    assert model_facts("v4-flash") is V4_FLASH
    del config["index_topk"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="index_topk"):
        model_facts(str(tmp_path))
    with pytest.raises(ValueError, match="v5"):
        model_facts("v5")
