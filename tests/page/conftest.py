"""A browser, a real server with the page, and a tab whose complaints fail the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from pagemill.model_files import ModelFiles, inspect
from tests.page.chromium import NotPossibleHere
from tests.page.looking import PATIENCE, Complaints, Looked, browsing, looked_at
from tests.server.tiny import write_tiny_llama

expect.set_options(timeout=PATIENCE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")  # no longer: the browser's driver has an event loop of its own in this thread
def browser() -> Iterator[Browser]:
    try:
        with browsing() as found:
            yield found
    except NotPossibleHere as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return inspect(write_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=200_000))


@pytest.fixture(scope="module")
def shared_server(files: ModelFiles) -> Iterator[Looked]:
    with looked_at(files, unhurried=True) as looked:
        yield looked


@pytest.fixture
def server(shared_server: Looked) -> Iterator[Looked]:
    """Nobody is answered when the test begins, nor afterwards."""
    yield shared_server
    shared_server.hang_up()


Open = Callable[..., Page]


@pytest.fixture
def tab(browser: Browser) -> Iterator[Open]:
    """Opens an address in a tab of its own; keywords are the browser context's. At the end no tab may have complained."""
    complaints: list[Complaints] = []

    def open_tab(address: str, **context: Any) -> Page:
        page = browser.new_context(**context).new_page()
        page.set_default_timeout(PATIENCE)
        complaint = Complaints(address.partition("#")[0])
        complaint.listen(page)
        complaints.append(complaint)
        page.goto(address)
        return page

    yield open_tab
    for context in list(browser.contexts):
        context.close()
    assert [what for complaint in complaints for what in complaint.found] == []
