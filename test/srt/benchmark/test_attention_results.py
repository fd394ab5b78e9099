"""The attention benchmark's results: complete, plotted, and what the README says."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmark" / "attention"))

import bench_attention
from plot_attention import plot

FOLDER = Path(bench_attention.__file__).parent
RESULTS = sorted((FOLDER / "results").glob("*.json"))


@pytest.fixture(params=RESULTS, ids=lambda path: path.stem)
def result(request):
    return request.param


def test_there_are_results():
    assert [path.stem for path in RESULTS] == ["nvidia_h200"]


def test_every_shape_was_measured(result):
    rows = json.loads(result.read_text())["rows"]
    measured = {
        (row["heads"], row["tokens"], row["extra_topk"], row["extra_page_size"])
        for row in rows
    }
    asked = {
        (shape.num_heads, shape.num_tokens, shape.extra_topk, shape.extra_page_size)
        for shape in bench_attention.shapes()
    }
    assert measured == asked


def test_a_share_of_the_floor_is_no_more_than_all_of_it(result):
    for row in json.loads(result.read_text())["rows"]:
        assert 0 < row["floor_share"] < 1, row


def test_a_plot_is_drawn(result, tmp_path):
    copied = tmp_path / result.name
    copied.write_text(result.read_text())
    drawn = plot(copied)
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert result.with_suffix(".png").exists()
