"""Writes what ``bench_serving`` writes, at once: for tests of what is around it.

With STAND_IN_BENCH=waits it writes its process's number and waits; with ``fails`` it
fails; with ``drops`` a request goes unanswered.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-file", type=Path)
    parser.add_argument("--num-prompts", type=int)
    parser.add_argument("--seed", type=int)
    args, _ = parser.parse_known_args()
    behaviour = os.environ.get("STAND_IN_BENCH")
    if behaviour == "waits":
        waiting = Path(os.environ["STAND_IN_STARTS"]).with_name("waiting")
        # Whoever finds the file finds the number in it.
        waiting.with_suffix(".part").write_text(str(os.getpid()))
        waiting.with_suffix(".part").replace(waiting)
        time.sleep(600)
    if behaviour == "fails":
        sys.exit("the connection was refused")
    result = {
        "completed": args.num_prompts - (behaviour == "drops"),
        "total_throughput": 1000.0 + args.seed,
        "median_ttft_ms": 10.0,
        "p99_ttft_ms": 20.0,
        "median_tpot_ms": 0.0,
    }
    args.output_file.write_text(json.dumps(result) + "\n")
