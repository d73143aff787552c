"""A real server to look at, and a browser page that must not complain: what the tests of this folder share with pictures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from pagemill.model_files import ModelFiles
from pagemill_server.config import SchedulerConfig, ServerConfig
from tests.page.chromium import FLAGS, chromium
from tests.server.api.running import NAME, settings_for, until
from tests.server.test_serve import Living

TOKEN = "of-the-test-4711"
PATIENCE = 60_000  # milliseconds


@dataclass
class Looked:
    """A server whose management port has the page, and the answers that it is giving."""

    living: Living
    client: httpx.Client
    threads: list[threading.Thread] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)

    @property
    def page(self) -> str:
        return self.living.management_url + "/"

    @property
    def page_with_token(self) -> str:
        return f"{self.page}#token={TOKEN}"

    def ask(self, prompt: str, tokens: int, client: str = "") -> None:
        """Begin an answer of so many tokens; `hang_up` ends what is left of all."""
        thread = threading.Thread(target=self._read, args=(prompt, tokens, client))
        thread.start()
        self.threads.append(thread)

    def hang_up(self) -> None:
        self.hung_up.set()
        for thread in self.threads:
            thread.join(30)
        self.threads.clear()
        self.hung_up.clear()

    def _read(self, prompt: str, tokens: int, client: str) -> None:
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        headers = {"x-client-id": client} if client else {}
        try:
            with self.client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
                assert response.status_code == 200, response.read()
                for _ in response.iter_lines():
                    if self.hung_up.is_set():
                        return
        except httpx.HTTPError:  # the test ended the server
            return


@contextmanager
def looked_at(
    files: ModelFiles, *, memory_bytes: int = 16 << 20, name: str = NAME, unhurried: bool = False, **scheduler: Any
) -> Iterator[Looked]:
    settings = settings_for(files.path, memory_bytes=memory_bytes)
    model = replace(settings.model, served_names=(name,))
    config = SchedulerConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 64, **scheduler})
    server = ServerConfig(management_token=TOKEN, shutdown_timeout=60)
    living = Living(replace(settings, model=model, scheduler=config, server=server), files)
    try:
        limits = httpx.Limits(max_connections=100)
        with httpx.Client(base_url=living.url, timeout=60, verify=False, limits=limits) as client:
            until(lambda: client.get("/ready").status_code == 200)
            if unhurried:
                living.unhurried()
            looked = Looked(living, client)
            try:
                yield looked
            finally:
                looked.hang_up()
    finally:
        if living.thread.is_alive():
            living.signal()
            living.signal()
        living.end()


@contextmanager
def browsing() -> Iterator[Browser]:
    """Raises NotPossibleHere."""
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Complaints:
    """What a page has done that it must not: errors, forbidden loads, requests to elsewhere."""

    origin: str
    found: list[str] = field(default_factory=list)

    def listen(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("request", lambda request: self._request(request.url))
        page.on("console", lambda message: self._console(message.type, message.text))

    def _request(self, url: str) -> None:
        if not url.startswith(self.origin):
            self.found.append(f"a request to {url}")

    def _console(self, kind: str, text: str) -> None:
        # The browser itself says when a request is refused or a server is gone; the page shows that.
        if kind in ("error", "warning") and "Failed to load resource" not in text:
            self.found.append(f"{kind}: {text}")
