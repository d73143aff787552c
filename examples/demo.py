"""`make demo`: bring up a deployment with `pagemill up`, ask it one question, shut it down cleanly.

    python examples/demo.py [--keep] [FILE]

--keep leaves it running until Ctrl-C. What `pagemill up` prints is shown as it comes: conditions, then the server's own log.
"""

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from chat import main as ask

QUESTION = "What is the capital of France?"
PATIENCE = 300  # seconds


def main() -> int:
    args = [arg for arg in sys.argv[1:] if arg != "--keep"]
    file = args[0] if args else "examples/smollm2.yaml"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    up = subprocess.Popen([sys.executable, "-m", "pagemill", "up", "-f", file, "--port", str(port)])
    try:
        if not wait_until_ready(url, up):
            print("the deployment did not become Ready; what it printed above says why", file=sys.stderr)
            return 1
        print(f"\n> {QUESTION}\n", flush=True)
        ask(f"{url}/v1", QUESTION)
        print(f"served at {url}/v1", flush=True)
        if "--keep" in sys.argv:
            print("it stays up until Ctrl-C", flush=True)
            up.wait()
        return 0
    except KeyboardInterrupt:
        return 0
    finally:
        if up.poll() is None:
            up.send_signal(signal.SIGINT)
        up.wait(timeout=60)


def wait_until_ready(url: str, up: "subprocess.Popen[bytes]") -> bool:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and up.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
