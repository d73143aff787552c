"""`make demo`: bring up a deployment with `pagemill up`, ask it one question, shut it down cleanly.

    python examples/demo.py [--keep] [FILE]

--keep leaves it running until Ctrl-C. What `pagemill up` prints is shown as it comes: conditions, loading progress, the server's
own log; while the answer streams it waits, so that the two don't mix.
"""

import signal
import socket
import subprocess
import sys
import threading
import time

from chat import main as ask

QUESTION = "What is the capital of France?"
PORT = 8000
PATIENCE = 300  # seconds until Ready


class Up:
    """A running `pagemill up`, and its output."""

    def __init__(self, file: str, port: int) -> None:
        command = [sys.executable, "-u", "-m", "pagemill", "up", "-f", file, "--port", str(port)]
        # A group of its own: a terminal's Ctrl-C would reach it beside `stop`'s, and twice means that it need not drain.
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
        )
        self.quiet = threading.Lock()  # whoever holds it has the terminal
        self._answers, self._ready = f" answers at http://127.0.0.1:{port}/v1\n", threading.Event()
        self._forwarder = threading.Thread(target=self._forward, daemon=True)
        self._forwarder.start()

    def _forward(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.quiet:
                sys.stdout.write(line)
                sys.stdout.flush()
            if line.endswith(self._answers):
                self._ready.set()

    def wait_until_ready(self) -> bool:
        """Until it says so itself: its port may answer a moment before. False where it has ended, or takes too long."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            if self._ready.wait(0.2):
                return True
        return False

    def stop(self) -> None:
        """Ctrl-C for it; pressed again while it drains, it is passed on, and ends it now."""
        while self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=180)
            except KeyboardInterrupt:
                continue
        self._forwarder.join(timeout=10)


def main() -> int:
    args = [arg for arg in sys.argv[1:] if arg != "--keep"]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    up = Up(args[0] if args else "examples/smollm2.yaml", port)
    try:
        if not up.wait_until_ready():
            print("the deployment did not become Ready; what is printed above says why", file=sys.stderr)
            return 1
        with up.quiet:
            print(f"\n> {QUESTION}\n", flush=True)
            ask(f"{url}/v1", QUESTION)
            print(f"\nserved at {url}/v1\n", flush=True)
        if "--keep" in sys.argv:
            print("it stays up until Ctrl-C", flush=True)
            up.process.wait()
        return 0
    except KeyboardInterrupt:
        return 0
    finally:
        up.stop()


def free_port() -> int:
    """The port that the README's client knows, or any other where that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what closed a moment ago does not take it
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
