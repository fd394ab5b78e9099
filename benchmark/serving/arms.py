"""Servers of both formats for a comparison: the same but for the format."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import socket
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import requests
from serving.cells import TOPOLOGIES
from serving.server import Server, ServerError, running

from sglang_dsv4_nvfp4.cli.main import positive
from sglang_dsv4_nvfp4.config import KV_CACHE_FORMAT_ENV
from sglang_dsv4_nvfp4.machine import describe_device, versions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every comparison asks about its servers."""
    parser.add_argument("--model-path", required=True)
    parser.add_argument(
        "--topology",
        choices=TOPOLOGIES,
        default="none",
        help="options of sglang serve that spread the model (default: none)",
    )
    parser.add_argument(
        "--server-args",
        type=shlex.split,
        default=[],
        metavar="'--OPTION ...'",
        help="more options of sglang serve, in one string",
    )
    parser.add_argument(
        "--max-total-tokens",
        type=positive,
        required=True,
        help="the token count that both servers are held to",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--port", type=int, help="of the servers (default: one that is free)"
    )
    parser.add_argument(
        "--startup-timeout", type=float, default=1800, metavar="SECONDS"
    )
    parser.add_argument(
        "--server-command",
        type=shlex.split,
        default=["sglang", "serve"],
        help="(default: 'sglang serve')",
    )


def exit_status(program: str, work: Callable[[], None]) -> int:
    """Do a comparison's work: 0, 1 where it says why it ended, 130 at Ctrl-C."""
    try:
        work()
    except (ServerError, ValueError, requests.RequestException) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"\n{program}: interrupted; the same command goes on from here",
            file=sys.stderr,
        )
        return 130
    return 0


def settings_of(args: argparse.Namespace, **more) -> dict:
    """What all results of a folder have in common."""
    import torch

    return {
        "model_path": args.model_path,
        "topology": args.topology,
        "server_args": [*TOPOLOGIES[args.topology], *args.server_args],
        "max_total_tokens": args.max_total_tokens,
        "server_command": args.server_command,
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith("SGLANG_") and name != KV_CACHE_FORMAT_ENV
        },
        "device": describe_device() if torch.cuda.is_available() else "cpu",
        "versions": versions(),
        "date": datetime.date.today().isoformat(),
        **more,
    }


def keep_settings(folder: Path, settings: dict) -> None:
    """Write them, or go on with those that are there.

    Raises:
        ValueError: the folder's results were taken with others.
    """
    path = folder / "settings.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings, indent=1) + "\n")
        return
    kept = json.loads(path.read_text())
    differ = [
        f"{key} was {kept.get(key)}, now {value}"
        for key, value in settings.items()
        if key != "date" and kept.get(key) != value
    ]
    if differ:
        raise ValueError(
            f"{folder} holds results of other settings ({'; '.join(differ)}); give "
            "another --out"
        )
    settings["date"] = kept["date"]


def start(
    args: argparse.Namespace, settings: dict, arm: str
) -> AbstractContextManager[Server]:
    """A server of one format, healthy and checked by :func:`check` inside of it."""
    port = args.port or _free_port()
    command = [
        *args.server_command,
        *("--model-path", args.model_path),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-total-tokens", str(args.max_total_tokens)),
        *settings["server_args"],
    ]
    log = args.out / f"server.{arm}.log"
    # The log says which format was served: of this server alone.
    log.unlink(missing_ok=True)
    return running(
        command,
        {KV_CACHE_FORMAT_ENV: arm},
        url=f"http://127.0.0.1:{port}",
        log=log,
        timeout_s=args.startup_timeout,
    )


def check(server: Server, arm: str, pinned: int) -> int:
    """The tokens that the server holds.

    Raises:
        ServerError: it serves the other format, or holds another number of tokens.
    """
    if server.serves_nvfp4() != (arm == "nvfp4"):
        raise ServerError(
            f"the {arm} server serves the other format, as {server.log} says; "
            "`sglang-dsv4-nvfp4 doctor` says why"
        )
    tokens = server.max_total_num_tokens()
    if tokens != pinned:
        raise ServerError(
            f"the {arm} server holds {tokens} tokens, not the {pinned} of "
            "--max-total-tokens, so the arms would not compare; lower it, to what "
            "`sglang-dsv4-nvfp4 capacity` says, in whole pages of 256"
        )
    return tokens


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
