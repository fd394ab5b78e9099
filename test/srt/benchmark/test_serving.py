"""The serving comparison: real HTTP, real processes, a stand-in for the model."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import psutil
import pytest
from serving import bench_formats, report, samples, server
from serving.cells import TOPOLOGIES
from serving.samples import Sample
from support.models import write_v4_flash_config
from support.processes import run_python

ROOT = Path(bench_formats.__file__).parent
SUPPORT = Path(__file__).resolve().parents[2] / "support"
SERVER, LOAD = (str(SUPPORT / f"stand_in_{name}.py") for name in ("server", "bench"))
PINNED = 2560


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """``bench("--option ...")``: its exit status, with stand-ins for server and load."""
    monkeypatch.setenv("STAND_IN_STARTS", str(tmp_path / "starts"))
    monkeypatch.setattr(bench_formats, "BENCH", (sys.executable, LOAD))

    def run(*options):
        return bench_formats.main(arguments(tmp_path, *options))

    yield run
    assert not living(tmp_path)


def arguments(folder, *options):
    return [
        *("--model-path", "some/model", "--out", str(folder / "out")),
        *("--server-command", f"{sys.executable} {SERVER}"),
        *("--max-total-tokens", str(PINNED), "--workloads", "16:4:2:4", *options),
    ]


def starts(folder):
    """The stand-in servers that were started: arm, process, options."""
    path = folder / "starts"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [tuple(line.split(" ", 2)) for line in lines]


def living(folder):
    pids = [int(pid) for _, pid, _ in starts(folder)]
    if (folder / "waiting").exists():
        pids.append(int((folder / "waiting").read_text()))
    return [pid for pid in pids if is_running(pid)]


def is_running(pid):
    """Not merely a process that nobody has waited for."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_whole_way_with_sglangs_own_load(tmp_path, capsys):
    """As a user runs it, in a process of its own, with ``bench_serving`` as it is."""
    write_tokenizer(tmp_path / "model")
    command = [
        *(sys.executable, str(ROOT / "bench_formats.py"), *arguments(tmp_path)),
        *("--model-path", str(tmp_path / "model"), "--samples", "1"),
        *("--topology", "dp4", "--server-args", "--mem-fraction-static 0.9"),
    ]
    environment = {**os.environ, "STAND_IN_STARTS": str(tmp_path / "starts")}
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    out = tmp_path / "out"
    taken = {sample.arm: sample for sample in samples.read(out)}
    assert set(taken) == {"fp8", "nvfp4"}
    for sample in taken.values():
        assert sample.tokens == PINNED and sample.result["completed"] == 4
    # The stand-in takes a third of the time in NVFP4.
    tpot = {arm: sample.result["median_tpot_ms"] for arm, sample in taken.items()}
    assert 0 < tpot["nvfp4"] < tpot["fp8"]
    table = (out / "table.md").read_text()
    assert "| isl16-osl4-c2-n4 | median TPOT, ms |" in table and table in ran.stdout
    for metric in samples.METRICS:
        assert (out / f"{metric.key}.png").read_bytes().startswith(b"\x89PNG")
    for _, _, options in starts(tmp_path):
        assert "--tp-size 4 --dp-size 4 --enable-dp-attention" in options
        assert "--mem-fraction-static 0.9" in options
        assert f"--max-total-tokens {PINNED}" in options
    assert not living(tmp_path)


def write_tokenizer(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"word{number}": number for number in range(100)} | {"[UNK]": 100}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


_RESOLVE = """
import json, sys
from sglang.srt.runtime_context import override_platform
override_platform(is_sm120=True, is_cuda=True).install()
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import prepare_server_args
for options in json.load(sys.stdin):
    prepare_server_args(options).resolve_once()
"""


def test_sglang_takes_the_options_of_every_topology(tmp_path):
    """And this package serves them: its seam is passed on the way."""
    write_v4_flash_config(tmp_path)
    model = ["--model-path", str(tmp_path), "--device", "cuda"]
    result = run_python(
        "-c",
        _RESOLVE,
        stdin=json.dumps([[*model, *one] for one in TOPOLOGIES.values()]),
        SGLANG_SM120_KV_CACHE_FORMAT="nvfp4",
    )
    assert result.returncode == 0, result.stderr[-2000:]


def test_arms_take_turns_and_finished_cells_are_not_repeated(bench, tmp_path):
    assert bench("--samples", "2") == 0
    assert [arm for arm, _, _ in starts(tmp_path)] == ["fp8", "nvfp4", "nvfp4", "fp8"]
    lost = samples.path_of(tmp_path / "out", "isl16-osl4-c2-n4", "nvfp4", 1)
    lost.unlink()
    assert bench("--samples", "2") == 0
    assert [arm for arm, _, _ in starts(tmp_path)][4:] == ["nvfp4"]
    assert lost.is_file()
    assert bench("--samples", "3") == 0
    assert [arm for arm, _, _ in starts(tmp_path)][5:] == ["fp8", "nvfp4"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("fewer tokens", f"holds {PINNED - 256} tokens, not the {PINNED}"),
        ("dies", "no memory left for this stand-in"),
        ("never healthy", "not healthy within 8 s"),
        ("wrong format", "the nvfp4 server serves the other format"),
    ],
)
def test_a_server_that_does_not_compare_is_refused(
    bench, tmp_path, monkeypatch, capsys, fault, said
):
    monkeypatch.setenv("STAND_IN", json.dumps({"nvfp4": fault}))
    timeout = "8" if fault == "never healthy" else "60"
    assert bench("--samples", "1", "--startup-timeout", timeout) == 1
    assert said in capsys.readouterr().err
    # What the other arm took is kept, and shown.
    assert "| 1 and 0 |" in (tmp_path / "out" / "table.md").read_text()
    assert [sample.arm for sample in samples.read(tmp_path / "out")] == ["fp8"]


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("fails", "bench_serving ended with 1 on isl16-osl4-c2-n4; see "),
        ("drops", "3 of 4 requests of isl16-osl4-c2-n4 were answered"),
    ],
)
def test_a_load_that_fails_is_no_sample(
    bench, tmp_path, monkeypatch, capsys, behaviour, said
):
    monkeypatch.setenv("STAND_IN_BENCH", behaviour)
    assert bench("--samples", "1") == 1
    assert said in capsys.readouterr().err
    assert samples.read(tmp_path / "out") == []


def test_a_server_that_does_not_listen_is_killed(bench, monkeypatch):
    monkeypatch.setenv("STAND_IN", json.dumps({"fp8": "deaf"}))
    monkeypatch.setattr(server, "STOP_TIMEOUT_S", 0.5)
    assert bench("--samples", "1") == 0


def test_a_port_that_is_taken_is_refused(bench, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        # What listens there and never answers is no server of ours either.
        answering = Thread(target=answer_once, args=(taken,), daemon=True)
        answering.start()
        assert bench("--samples", "1", "--port", str(port)) == 1
    assert "already; give another --port" in capsys.readouterr().err


def answer_once(listening):
    connection, _ = listening.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    connection.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_leaves_no_server(tmp_path, number):
    running = start_and_wait(tmp_path)
    assert living(tmp_path)
    running.send_signal(number)
    _, said = running.communicate(timeout=90)
    assert running.returncode == 128 + number
    assert ("the same command goes on from here" in said) == (number == signal.SIGINT)
    assert not living(tmp_path)


def test_a_killed_run_leaves_no_server(tmp_path):
    """SIGKILL runs no handler, so the kernel ends the server and the load."""
    running = start_and_wait(tmp_path)
    assert len(living(tmp_path)) == 2
    running.kill()
    running.wait()
    deadline = time.monotonic() + 10
    while living(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not living(tmp_path)


def start_and_wait(folder, **environment):
    """A comparison in a process of its own, under way: its load waits for ever."""
    environment = {
        **os.environ,
        "STAND_IN_STARTS": str(folder / "starts"),
        "STAND_IN_BENCH": "waits",
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT.parent), os.environ.get("PYTHONPATH", "")]
        ),
        **environment,
    }
    program = (
        "import sys\nfrom serving import bench_formats, server\n"
        f"bench_formats.BENCH = (sys.executable, {LOAD!r})\n"
        "server.STOP_TIMEOUT_S = 2\n"
        "sys.exit(bench_formats.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *arguments(folder)]
    running = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not (folder / "waiting").exists() and time.monotonic() < deadline:
        assert running.poll() is None, running.stderr.read()
        time.sleep(0.1)
    return running


def test_an_impatient_user_leaves_no_server_either(tmp_path):
    """Ctrl-C twice, at a server that does not listen."""
    running = start_and_wait(tmp_path, STAND_IN=json.dumps({"fp8": "deaf"}))
    for _ in range(2):
        running.send_signal(signal.SIGINT)
        time.sleep(0.5)
    running.communicate(timeout=90)
    assert not living(tmp_path)


def test_samples_of_other_settings_are_not_mixed(bench, capsys):
    assert bench("--samples", "1") == 0
    assert bench("--samples", "1", "--topology", "pp4") == 1
    assert "topology was none, now pp4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--workloads", "8k-c8", "16:4"], "workload '16:4' is neither of 8k-c8, "),
        (["--samples", "0"], "must be positive"),
    ],
)
def test_bad_options_are_named(bench, capsys, options, said):
    with pytest.raises(SystemExit):
        bench(*options)
    assert said in capsys.readouterr().err


def made(arm, number, throughput, tokens=PINNED):
    result = {metric.key: 1.0 for metric in samples.METRICS}
    return Sample(
        "cell", arm, number, tokens, result | {"total_throughput": throughput}
    )


def test_a_change_is_of_medians_and_its_spread_of_rounds():
    taken = [made("fp8", n, v) for n, v in enumerate((100, 110, 90))]
    taken += [made("nvfp4", n, v) for n, v in enumerate((110, 115.5, 108))]
    throughput, *_ = samples.compare(taken)
    assert throughput.change == pytest.approx(110 / 100 - 1)
    assert throughput.low == pytest.approx(0.05) and throughput.high == pytest.approx(
        0.2
    )
    assert throughput.values == {"fp8": [100, 110, 90], "nvfp4": [110, 115.5, 108]}


def test_other_token_counts_do_not_compare():
    with pytest.raises(ValueError, match="2304 tokens: nvfp4; 2560 tokens: fp8"):
        samples.compare([made("fp8", 0, 1.0), made("nvfp4", 0, 1.0, PINNED - 256)])


def test_one_arm_alone_has_no_change():
    throughput, *_ = samples.compare([made("fp8", 0, 5.0)])
    assert throughput.change is None
    settings = {
        "model_path": "m",
        "versions": {},
        "device": "d",
        "date": "2026-01-01",
        "topology": "none",
        "server_args": [],
        "max_total_tokens": PINNED,
    }
    assert "| 5.0 |  |  | 1 and 0 |" in report.markdown(settings, [throughput])


@pytest.mark.parametrize(
    ("values", "groups"),
    [
        ([10.0, 10.1, 12.0, 12.1], ([10.0, 10.1], [12.0, 12.1])),
        ([12.0, 10.1, 12.1, 10.0, 10.2], ([10.0, 10.1, 10.2], [12.0, 12.1])),
        # One that is out is no cluster, a narrow gap no difference, three no sample.
        ([10.0, 10.1, 10.05, 12.0], None),
        ([10.0, 10.0001, 10.05, 10.0501], None),
        ([1.0, 1.0, 2.0], None),
        ([5.0] * 6, None),
    ],
)
def test_two_clusters(values, groups):
    assert samples.clusters(values) == groups


@pytest.mark.parametrize("count", range(4, 21))
def test_normal_samples_are_one_cluster(count):
    drawn = random.Random(count)
    alarms = sum(
        samples.clusters([drawn.gauss(1000, 30) for _ in range(count)]) is not None
        for _ in range(2000)
    )
    assert alarms < 0.03 * 2000


def test_clusters_are_marked_in_the_table():
    values = {"fp8": (100, 101, 100.5, 100.2), "nvfp4": (100, 100.1, 120, 120.1)}
    taken = [made(arm, n, v) for arm, row in values.items() for n, v in enumerate(row)]
    throughput, *_ = samples.compare(taken)
    assert throughput.clustered == ("nvfp4",)
    assert "110.0*" in report._row(throughput) and "100.3 |" in report._row(throughput)
