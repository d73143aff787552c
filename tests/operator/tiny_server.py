"""A server of a few lines, as a process, for what the local cluster does around one: health, readiness, streams, crashes, drain.

Not a stand-in for the model's server in what that does: where the answer matters, tests run the real one. Flags: --port --host
--version TEXT, --crash FILE (write FILE's text to the termination log and exit 3 while FILE exists), --slow SECONDS (unready for
so long), --stubborn (ignores SIGTERM). `/stream?n=5&every=0.1` sends n lines; SIGTERM ends it when what streams has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

BEGAN = time.monotonic()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--version", default="1")
    parser.add_argument("--crash", type=Path)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--stubborn", action="store_true")
    return parser.parse_args()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    flags = arguments()
    if flags.crash is not None and flags.crash.exists():
        Path(os.environ["PAGEMILL_TERMINATION_LOG"]).write_text(flags.crash.read_text())
        sys.exit(3)
    draining = threading.Event()
    dead = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = dict(parse_qsl(url.query))
            if url.path == "/health":
                self.answer(503 if dead.is_set() else 200, {})
            elif url.path == "/ready":
                ready = not draining.is_set() and time.monotonic() - BEGAN >= flags.slow
                self.answer(200 if ready else 503, {"ready": ready})
            elif url.path == "/stream":
                self.stream(int(query["n"]), float(query["every"]))
            elif url.path == "/die":
                os._exit(int(query["code"]))
            elif url.path == "/hang":
                dead.set()
                self.answer(200, {})
            else:
                self.answer(200, {"version": flags.version, "pid": os.getpid(), "headers": dict(self.headers)})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self.answer(200, {"body": self.rfile.read(length).decode(), "path": self.path})

        def stream(self, count: int, every: float) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(count):
                line = f"{flags.version}:{number}\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                time.sleep(every)
            self.wfile.write(b"0\r\n\r\n")

        def answer(self, status: int, body: dict[str, object]) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # server_close waits for what still streams

    server = Server((flags.host, flags.port), Handler)

    def drain(*_: object) -> None:
        say("draining")
        draining.set()
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, signal.SIG_IGN if flags.stubborn else drain)
    say(f"version {flags.version} listens")
    server.serve_forever(poll_interval=0.05)
    server.server_close()


if __name__ == "__main__":
    main()
