"""What the serving benchmark needs of ``sglang serve``, without a model: HTTP that answers.

Its answers take less time in NVFP4. What it should do wrong it is told by STAND_IN: JSON of
``{arm: fault}``.
"""

import argparse
import json
import os
import re
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ARM = os.environ["SGLANG_SM120_KV_CACHE_FORMAT"]
FAULT = json.loads(os.environ.get("STAND_IN", "{}")).get(ARM)
SECONDS_A_TOKEN = {"fp8": 0.06, "nvfp4": 0.02}[ARM]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/health":
            self.send_response(503 if FAULT == "never healthy" else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/server_info":
            tokens = ARGS.max_total_tokens
            if FAULT == "fewer tokens":
                tokens -= 256
            self._json({"max_total_num_tokens": tokens, "internal_states": []})
        else:
            self._json({"data": [{"id": ARGS.model_path}], "model_path": "some/model"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/flush_cache"):
            self._json({})
            return
        asked = json.loads(body)
        if not asked.get("stream"):
            said = {
                "text": answer(asked["text"]),
                "meta_info": {"completion_tokens": 1},
            }
            self._json(said)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for count in range(1, asked["sampling_params"]["max_new_tokens"] + 1):
            time.sleep(SECONDS_A_TOKEN)
            said = {
                "text": "word " * count,
                "meta_info": {"completion_tokens": count, "prompt_tokens": 1},
            }
            self.wfile.write(f"data: {json.dumps(said)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def _json(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    # Clients come all at once; of more than these the kernel drops some.
    request_queue_size = 128


def answer(prompt):
    """The pass key, or the last sum that is asked for; of some keys it is not sure."""
    key = re.search(r"The pass key is (\d+)\.", prompt)
    if key:
        forgotten = FAULT == "forgets" and int(key[1]) % 2
        return "lost" if forgotten else f" {key[1]}."
    left, right = re.findall(r"Question: What is (\d+) and (\d+)\?", prompt)[-1]
    return f" It is {int(left) + int(right) + (FAULT == 'miscounts')}"


def main():
    with open(os.environ["STAND_IN_STARTS"], "a") as starts:
        print(f"{ARM} {os.getpid()} {' '.join(sys.argv[1:])}", file=starts)
    if FAULT == "dies":
        sys.exit("no memory left for this stand-in")
    if FAULT == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if ARM == "nvfp4" and FAULT != "wrong format":
        print("DeepSeek-V4 KV cache in NVFP4: 384 bytes a token", flush=True)
    Server(("127.0.0.1", ARGS.port), Handler).serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path")
    parser.add_argument("--port", type=int)
    parser.add_argument("--max-total-tokens", type=int)
    ARGS, _ = parser.parse_known_args()
    main()
