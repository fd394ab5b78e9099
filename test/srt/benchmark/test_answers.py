"""The comparison of right answers: its arithmetic, and the whole way with a stand-in."""

import json
import sys
from pathlib import Path

import pytest
from accuracy import attention_error, bench_answers
from accuracy.proportions import Share, compare

SUPPORT = Path(__file__).resolve().parents[2] / "support"
RESULTS = Path(attention_error.__file__).parent / "results"


def test_the_patchs_gsm8k_figures():
    """0.967 and 0.965 of 1000: 0.3 standard errors of one share apart, as its author
    says; of their difference, which is what is tested, 0.2."""
    fp8, nvfp4 = Share(967, 1000), Share(965, 1000)
    assert fp8.standard_error == pytest.approx(0.00565, abs=5e-6)
    assert (fp8.value - nvfp4.value) / nvfp4.standard_error == pytest.approx(
        0.34, abs=0.01
    )
    found = compare(fp8, nvfp4)
    assert found.sigmas == pytest.approx(0.2468, abs=1e-4)
    assert found.p_value == pytest.approx(0.805, abs=1e-3)


@pytest.mark.parametrize(
    ("one", "other", "sigmas"),
    [
        # By hand: pooled 0.55, error sqrt(0.2475 * 0.02).
        (Share(60, 100), Share(50, 100), 0.1 / 0.0703562),
        (Share(50, 100), Share(60, 100), -0.1 / 0.0703562),
        (Share(10, 10), Share(20, 20), 0.0),
        (Share(0, 10), Share(0, 10), 0.0),
    ],
)
def test_sigmas_by_hand(one, other, sigmas):
    assert compare(one, other).sigmas == pytest.approx(sigmas, abs=1e-5)


def test_two_sigmas_are_rare():
    assert compare(Share(64, 100), Share(50, 100)).p_value == pytest.approx(
        0.0455, abs=1e-3
    )


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """``answers("task", "--option", ...)``: exit status and what was written."""
    monkeypatch.setenv("STAND_IN_STARTS", str(tmp_path / "starts"))
    out = tmp_path / "out"

    def ask(task, *options):
        status = bench_answers.main(
            [
                task,
                *("--model-path", "some/model", "--out", str(out)),
                *("--server-command", f"{sys.executable} {SUPPORT}/stand_in_server.py"),
                *("--max-total-tokens", "2560", *options),
            ]
        )
        written = out / "answers.json"
        return status, json.loads(written.read_text()) if written.is_file() else None

    return ask


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "test.jsonl"
    lines = [
        {"question": f"What is {n} and {n + 1}?", "answer": f"#### {2 * n + 1}"}
        for n in range(20)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_gsm8k_of_both_formats(answers, questions, tmp_path, monkeypatch):
    """Through SGLang's own few-shot program."""
    monkeypatch.setenv("STAND_IN", json.dumps({"nvfp4": "miscounts"}))
    options = ("--data-path", str(questions), "--num-questions", "20")
    status, written = answers("gsm8k", *options)
    assert status == 0
    case = "GSM8K, 5-shot"
    assert written == {"fp8": {case: [20, 20]}, "nvfp4": {case: [0, 20]}}
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| 1.000 ± 0.000 (n = 20) | 0.000 ± 0.000 (n = 20) |" in table
    assert "-1.000, 6.3 sigma | p = 0.00 |" in table
    # What is there is not asked again.
    started = (tmp_path / "starts").read_text()
    assert answers("gsm8k", *options) == (0, written)
    assert (tmp_path / "starts").read_text() == started


def test_fewer_questions_than_asked_for_are_no_share(answers, questions, capsys):
    status, _ = answers("gsm8k", "--data-path", str(questions), "--num-questions", "33")
    assert status == 1
    assert f"--num-questions 33: there are 20 in {questions}" in capsys.readouterr().err


def test_needles_in_growing_contexts(answers, monkeypatch):
    monkeypatch.setenv("STAND_IN", json.dumps({"nvfp4": "forgets"}))
    status, written = answers("needle", "--context-lens", "50", "500", "--repeats", "2")
    assert status == 0
    assert written["fp8"] == {"needle in 50": [10, 10], "needle in 500": [10, 10]}
    lost = [
        sum(int(number) % 2 for _, number in bench_answers.needles(length, 2))
        for length in (50, 500)
    ]
    assert written["nvfp4"] == {
        f"needle in {length}": [10 - count, 10]
        for length, count in zip((50, 500), lost, strict=True)
    }
    assert 0 < lost[0] < 10


def test_a_needle_is_where_it_should_be():
    prompts = list(bench_answers.needles(1000, 3))
    assert len(prompts) == 15 and prompts == list(bench_answers.needles(1000, 3))
    at = [prompt.split().index(f"{number}.") / 1000 for prompt, number in prompts]
    assert at == pytest.approx(
        [d for d in bench_answers._DEPTHS for _ in range(3)], abs=0.03
    )
    assert all(prompt.count(number) == 1 for prompt, number in prompts)


def test_the_error_studys_data_are_what_it_measures():
    rows = json.loads((RESULTS / "attention_error.json").read_text())["rows"]
    kept = {(row["case"], row["logits"]): row for row in rows}
    assert len(kept) == 6
    measured = attention_error.measure("rms-normed", "flat")
    for key, value in kept["rms-normed", "flat"].items():
        expected = pytest.approx(value, rel=1e-3) if isinstance(value, float) else value
        assert measured[key] == expected
    for row in rows:
        assert row["amax6_rel_error"] < row["cake_rel_error"] < row["sparse_rel_error"]
        assert (
            0
            < row["fp8_rel_error"]
            < min(row["amax6_rel_error"], row["4over6_rel_error"])
        )
