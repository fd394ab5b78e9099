"""A server that is started, waited for, asked, and stopped whatever happens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import requests

STOP_TIMEOUT_S = 60
# Its workers take a moment longer than the server itself.
_GONE_TIMEOUT_S = 10
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
# Loaded here: between fork and exec is no place for it.
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
# What the plugin logs when it builds an NVFP4 pool; nothing in an FP8 server says it.
NVFP4_LINE = "DeepSeek-V4 KV cache in NVFP4"


class ServerError(RuntimeError):
    """The server did not start, or is not the one that was asked for."""


class Server:
    """``command`` in a process group of its own, with its output in ``log``."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        url: str,
        log: Path,
    ) -> None:
        self.url = url
        self.log = log
        self._refuse_another(url)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    @staticmethod
    def _refuse_another(url: str) -> None:
        """What answers already would be measured in place of the server."""
        with contextlib.suppress(requests.RequestException):
            requests.get(f"{url}/health", timeout=5)
            raise ServerError(
                f"something answers at {url} already; give another --port"
            )

    def wait_until_healthy(self, timeout_s: float) -> None:
        """
        Raises:
            ServerError: it ended, or is not healthy in time; with the log's last lines.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerError(
                    f"the server ended with {self.process.returncode} before it was "
                    f"healthy; the end of {self.log}:\n{self._tail()}"
                )
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            time.sleep(0.2)
        raise ServerError(
            f"the server was not healthy within {timeout_s:g} s; the end of "
            f"{self.log}:\n{self._tail()}"
        )

    def max_total_num_tokens(self) -> int:
        """Tokens of its KV cache, as it says itself."""
        answer = requests.get(f"{self.url}/server_info", timeout=30)
        answer.raise_for_status()
        return int(answer.json()["max_total_num_tokens"])

    def serves_nvfp4(self) -> bool:
        return NVFP4_LINE in self.log.read_text(errors="replace")

    def stop(self) -> None:
        """End the whole process group, by force where it does not go by itself.

        A second Ctrl-C waits until it is gone.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self._stop()
        finally:
            _unblock()

    def _stop(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)
            deadline = time.monotonic() + _GONE_TIMEOUT_S
            while _has_members(self.process.pid) and time.monotonic() < deadline:
                time.sleep(0.1)
            if not _has_members(self.process.pid):
                return

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def end_with_parent() -> None:
    """What a child process runs first: if this program is killed outright, the kernel
    kills the child, as SGLang has its workers killed with their server."""
    # A server starts with its stop signals held back, which is not for the server.
    _unblock()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _has_members(group: int) -> bool:
    """Whether a process of the group is more than a zombie."""
    for process in psutil.process_iter(["status"]):
        lives = process.info["status"] != psutil.STATUS_ZOMBIE
        with contextlib.suppress(OSError):
            if lives and os.getpgid(process.pid) == group:
                return True
    return False


@contextlib.contextmanager
def running(*arguments, timeout_s: float, **keywords) -> Iterator[Server]:
    """A healthy server; stopped at the end, and at a signal."""
    with _signals_raise(), contextlib.ExitStack() as stack:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            server = Server(*arguments, **keywords)
            stack.callback(server.stop)
        finally:
            _unblock()
        server.wait_until_healthy(timeout_s)
        yield server


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP end the program as Ctrl-C does: through every ``finally``."""

    def leave(number, frame):
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
