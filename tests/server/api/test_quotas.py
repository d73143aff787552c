"""What a key may use: buckets, concurrency, what a refusal costs. The clock stands until a test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest
from starlette.types import Message

from pagemill import metrics as names
from pagemill.keys import ApiKey
from pagemill_server.api.bucket import duration
from pagemill_server.api.endpoint import Call
from pagemill_server.api.prepare import Origin
from pagemill_server.api.quotas import Quotas
from pagemill_server.api.visit import Limit, Limited, Outcome
from pagemill_server.errors import BadRequest, EngineFailed, TooManyRequests, Unavailable


class Counters:
    def __init__(self) -> None:
        self.requests: list[tuple[str, Outcome]] = []
        self.tokens: list[tuple[str, int, int]] = []
        self.limited: list[tuple[str, Limit]] = []

    def count_request(self, key: str, outcome: Outcome) -> None:
        self.requests.append((key, outcome))

    def count_tokens(self, key: str, prompt: int, completion: int) -> None:
        self.tokens.append((key, prompt, completion))

    def count_limited(self, key: str, limit: Limit) -> None:
        self.limited.append((key, limit))


class Bench:
    def __init__(self, **limits: int) -> None:
        self.now = 100.0
        self.counters = Counters()
        self.quotas = Quotas(self.counters, lambda: self.now)
        self.key = ApiKey("team", b"digest", **limits)  # type: ignore[arg-type]

    def request(self, prompt: int = 0, completion: int = 0) -> None:
        """One that is answered at once."""
        with self.quotas.visit(self.key) as visit:
            visit.reserve(prompt, lambda: completion)

    def ends(self, error: BaseException, prompt: int, completion: int) -> None:
        """One that does not end well."""

        def visit() -> None:
            with self.quotas.visit(self.key) as visit:
                visit.reserve(prompt, lambda: completion)
                raise error

        with pytest.raises(type(error)):
            visit()

    def refused(self, prompt: int = 0) -> Limited:
        with pytest.raises(Limited) as caught:
            self.request(prompt)
        return caught.value

    def headers(self) -> dict[str, str]:
        return {name.decode().removeprefix("x-ratelimit-"): v.decode() for name, v in self.quotas.headers(self.key)}


def test_the_words_are_the_contract() -> None:
    assert tuple(Outcome) == names.KEY_OUTCOMES
    assert tuple(Limit) == names.LIMIT_REASONS


class TestRequests:
    def test_the_whole_limit_at_once_and_then_its_rate(self) -> None:
        bench = Bench(requests_per_minute=3)
        for _ in range(3):
            bench.request()
        refusal = bench.refused()
        assert (refusal.status, refusal.code, refusal.headers) == (429, "rate_limit_exceeded", {"retry-after": "20"})
        assert refusal.type == "rate_limit_error"
        assert "limit 3, used 3, requested 1" in refusal.message
        bench.now += 19
        assert bench.refused().headers == {"retry-after": "1"}
        bench.now += 1
        bench.request()
        bench.refused()

    def test_a_refusal_costs_nothing(self) -> None:
        bench = Bench(requests_per_minute=1)
        bench.request()
        for _ in range(100):
            bench.refused()
        bench.now += 60
        bench.request()
        assert bench.counters.limited == [("team", Limit.REQUESTS)] * 100

    @pytest.mark.parametrize("error", [TooManyRequests("queue"), Unavailable("draining")])
    def test_nor_does_one_for_other_reasons(self, error: Exception) -> None:
        bench = Bench(requests_per_minute=1, tokens_per_minute=10)
        for _ in range(3):
            with pytest.raises(type(error)), bench.quotas.visit(bench.key):
                raise error
        bench.request(10)
        assert bench.counters.requests[:3] == [("team", Outcome.REFUSED)] * 3
        assert not bench.counters.limited

    def test_a_clients_mistake_is_a_request(self) -> None:
        bench = Bench(requests_per_minute=1)
        with pytest.raises(BadRequest), bench.quotas.visit(bench.key):
            raise BadRequest("no")
        bench.refused()
        assert bench.counters.requests[0] == ("team", Outcome.INVALID)

    def test_names_have_accounts_of_their_own(self) -> None:
        bench = Bench(requests_per_minute=1)
        bench.request()
        bench.key = ApiKey("other", b"digest", requests_per_minute=1)
        bench.request()

    def test_a_new_limit_keeps_what_was_used(self) -> None:
        bench = Bench(requests_per_minute=3)
        for _ in range(3):
            bench.request()
        bench.key = ApiKey("team", b"a new key", requests_per_minute=4)
        bench.request()
        bench.refused()
        bench.key = ApiKey("team", b"digest", requests_per_minute=2)
        assert bench.refused().headers == {"retry-after": "90"}


class TestTokens:
    def test_prompts_and_answers(self) -> None:
        bench = Bench(tokens_per_minute=100)
        bench.request(60, 20)
        refusal = bench.refused(21)
        assert refusal.headers == {"retry-after": "1"}
        assert "tokens per min: limit 100, used 80, requested 21" in refusal.message
        bench.request(20)

    def test_a_refused_prompt_costs_neither_tokens_nor_a_request(self) -> None:
        bench = Bench(tokens_per_minute=100, requests_per_minute=2)
        bench.request(60)
        for _ in range(10):
            bench.refused(50)
        bench.request(40)
        assert bench.counters.tokens == [("team", 60, 0), *[("team", 0, 0)] * 10, ("team", 40, 0)]

    def test_an_answer_is_charged_as_it_comes(self) -> None:
        bench, produced = Bench(tokens_per_minute=100), 0
        with bench.quotas.visit(bench.key) as visit:
            visit.reserve(10, lambda: produced)
            bench.request(10)
            produced = 50
            assert bench.headers()["remaining-tokens"] == "30"
            bench.refused(31)
            produced = 200
            assert bench.headers()["remaining-tokens"] == "0"
        # 220 used: refused before the body is read, until there is one again, and then nothing is counted twice.
        with pytest.raises(Limited) as caught, bench.quotas.visit(bench.key):
            raise AssertionError("it got in")
        assert caught.value.headers == {"retry-after": "73"}  # 121 / 100 of a minute
        bench.now += 73
        bench.request(1)

    def test_a_prompt_beyond_the_limit_waits_for_all_of_it(self) -> None:
        bench = Bench(tokens_per_minute=100)
        bench.request(1)
        assert bench.refused(500).headers == {"retry-after": "1"}
        bench.now += 0.6
        bench.request(500)
        assert bench.refused(1).headers == {"retry-after": "241"}

    def test_nothing_came_of_it(self) -> None:
        bench = Bench(tokens_per_minute=100)
        bench.ends(EngineFailed("not finite"), 100, 0)
        bench.request(100)
        assert bench.counters.tokens[0] == ("team", 0, 0)
        assert bench.counters.requests[0] == ("team", Outcome.FAILED)

    def test_a_failure_after_some_of_the_answer_costs_what_came(self) -> None:
        bench = Bench(tokens_per_minute=100)
        bench.ends(EngineFailed("not finite"), 50, 20)
        bench.refused(31)
        assert bench.counters.tokens[0] == ("team", 50, 20)

    def test_who_hangs_up_has_used_what_came(self) -> None:
        bench = Bench(tokens_per_minute=100)
        bench.ends(asyncio.CancelledError(), 50, 7)
        assert bench.headers()["remaining-tokens"] == "43"
        assert bench.counters.requests == [("team", Outcome.ABORTED)]


class TestConcurrency:
    def test_from_arrival_to_the_end_however_it_ends(self) -> None:
        bench = Bench(max_concurrency=2, requests_per_minute=100)
        for end in (None, BadRequest("no"), RuntimeError("bug"), asyncio.CancelledError()):
            with ExitStack() as stack:
                for _ in range(2):
                    stack.enter_context(bench.quotas.visit(bench.key))
                refusal = bench.refused()
                assert refusal.headers == {"retry-after": "1"}
                assert "2 requests at once" in refusal.message
            if end is not None:
                with pytest.raises(type(end)), bench.quotas.visit(bench.key):
                    raise end
        bench.request()
        assert bench.counters.limited == [("team", Limit.CONCURRENCY)] * 4

    def test_a_refusal_takes_no_request_of_the_minute(self) -> None:
        bench = Bench(max_concurrency=1, requests_per_minute=2)
        with bench.quotas.visit(bench.key):
            bench.refused()
        bench.request()

    def test_a_bug_is_ours(self) -> None:
        bench = Bench()
        with pytest.raises(RuntimeError), bench.quotas.visit(bench.key):
            raise RuntimeError
        assert bench.counters.requests == [("team", Outcome.FAILED)]


class TestHeaders:
    def test_only_of_limits_that_there_are(self) -> None:
        assert Bench(max_concurrency=1).headers() == {}
        assert set(Bench(requests_per_minute=1).headers()) == {"limit-requests", "remaining-requests", "reset-requests"}

    def test_as_openai_spells_them(self) -> None:
        bench = Bench(requests_per_minute=60, tokens_per_minute=1000)
        bench.request(100, 25)
        assert bench.headers() == {
            "limit-requests": "60",
            "remaining-requests": "59",
            "reset-requests": "1s",
            "limit-tokens": "1000",
            "remaining-tokens": "875",
            "reset-tokens": "8s",
        }

    @pytest.mark.parametrize(
        ("seconds", "spelt"),
        [(0, "0s"), (0.12, "120ms"), (0.9995, "1s"), (1.2, "2s"), (59.5, "1m0s"), (360, "6m0s"), (3605, "1h0m5s")],
    )
    def test_durations(self, seconds: float, spelt: str) -> None:
        assert duration(seconds) == spelt


async def _whole(call: Call) -> None:
    await call.respond(b"{}")


async def _streamed(call: Call) -> None:
    await call.begin_events()
    await call.send_part(b"data")
    await call.end()


@pytest.mark.parametrize("answer", [_whole, _streamed])
def test_a_place_is_free_before_the_last_byte_goes_out(answer: Callable[[Call], Awaitable[None]]) -> None:
    bench, answered = Bench(max_concurrency=1, tokens_per_minute=100), []

    async def receive() -> Message:
        raise AssertionError("nothing is left to receive")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            bench.request()  # who has read it asks again
            answered.append(message)

    async def serve() -> None:
        with bench.quotas.visit(bench.key) as visit:
            visit.reserve(10, lambda: 5)
            await answer(Call({"type": "http", "headers": []}, receive, send, b"", Origin(0, ""), visit))

    asyncio.run(serve())
    assert answered
    assert bench.counters.tokens[0] == ("team", 10, 5)
    assert bench.headers()["remaining-tokens"] == "85"
    assert len(bench.counters.requests) == 2


def test_without_a_key_nothing_is_counted() -> None:
    bench = Bench()
    with bench.quotas.visit(None) as visit:
        visit.reserve(10**9, lambda: 5)
    assert not bench.counters.requests
    assert not bench.counters.tokens
