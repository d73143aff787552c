"""The items of a response and the events that tell of them: what the events say, joined, is what the items are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_server.api.responses.output import Event, Output
from pagemill_server.text.message import CallArguments, CallBegins, MessageEvent, Thought, Words


def output_of(events: list[MessageEvent], *, cut: bool = False) -> tuple[list[dict[str, Any]], list[Event]]:
    ids = iter(f"call_{place}" for place in range(100))
    output = Output(lambda: next(ids))
    made = [event for one in events for event in output.take(one)]
    made += output.end(cut=cut)
    return output.values(), made


def replayed(events: list[Event]) -> list[dict[str, Any]]:
    """What a client that believes each event knows at the end; asserts that none contradicts another."""
    items: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    for event in events:
        match event:
            case {"type": "response.output_item.added", "output_index": index, "item": item}:
                assert index == len(items) == len(done)
                assert item["status"] == "in_progress"
                items.append(item)
            case {"type": "response.output_item.done", "output_index": index, "item": item}:
                assert items[index] | {"status": item["status"]} == item
                done.append(item)
            case {"type": "response.content_part.added", "part": part}:
                items[-1]["content"].append(part)
            case {"type": "response.content_part.done", "part": part}:
                assert items[-1]["content"] == [part]
            case {"type": "response.output_text.delta" | "response.reasoning_text.delta", "delta": delta, **more}:
                part = items[-1]["content"][0]
                part["text"] += delta
                if "logprobs" in more:
                    part["logprobs"] = part["logprobs"] + more["logprobs"]
            case {"type": "response.output_text.done" | "response.reasoning_text.done", "text": text}:
                assert items[-1]["content"][0]["text"] == text
            case {"type": "response.function_call_arguments.delta", "delta": delta}:
                items[-1]["arguments"] += delta
            case {"type": "response.function_call_arguments.done", "arguments": arguments}:
                assert items[-1]["arguments"] == arguments
            case _:
                raise AssertionError(event)
        if "item_id" in event:
            assert (event["item_id"], event["output_index"]) == (items[-1]["id"], len(items) - 1)
    return done


ANSWER: list[MessageEvent] = [
    Thought("hm"),
    Thought("m"),
    Words("I'll "),
    Words("look."),
    CallBegins(0, "get"),
    CallArguments(0, '{"a":'),
    CallArguments(0, "1}"),
    CallBegins(1, "put"),
    CallArguments(1, "{}"),
]


def told(items: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [
        (item["type"], item["status"], item["arguments"] if "arguments" in item else item["content"][0]["text"])
        for item in items
    ]


def test_an_answer_of_all_kinds() -> None:
    items, events = output_of(ANSWER)
    assert told(items) == [
        ("reasoning", "completed", "hmm"),
        ("message", "completed", "I'll look."),
        ("function_call", "completed", '{"a":1}'),
        ("function_call", "completed", "{}"),
    ]
    assert [item["id"].split("_")[0] for item in items] == ["rs", "msg", "fc", "fc"]
    assert [item["call_id"] for item in items[2:]] == ["call_0", "call_1"]
    assert replayed(events) == items


def test_the_events_of_a_message() -> None:
    _, events = output_of([Words("hi")])
    assert [event["type"].removeprefix("response.") for event in events] == [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]


def test_cut_by_length_only_the_last_is_incomplete() -> None:
    items, events = output_of(ANSWER[:-1], cut=True)
    assert [item["status"] for item in items] == ["completed", "completed", "completed", "incomplete"]
    assert replayed(events) == items


@pytest.mark.parametrize("said", [[], [Thought("hm")]])
def test_an_answer_without_words_has_an_empty_message(said: list[MessageEvent]) -> None:
    items, events = output_of(said)
    assert told(items)[-1] == ("message", "completed", "")
    assert replayed(events) == items


def test_none_is_made_up_for_one_that_was_cut() -> None:
    assert told(output_of([Thought("hm")], cut=True)[0]) == [("reasoning", "incomplete", "hm")]


def test_late_logprobs_stand_with_their_message_or_nowhere() -> None:
    output = Output(lambda: "")
    assert output.take(Words(""), [{"token": "x"}]) == []
    output.take(Words("a"), [{"token": "a"}])
    assert [event["delta"] for event in output.take(Words(""), [{"token": "b"}])] == [""]
    output.end(cut=False)
    assert output.values()[0]["content"][0]["logprobs"] == [{"token": "a"}, {"token": "b"}]


pieces = st.one_of(st.builds(Words, st.text(max_size=3)), st.builds(Thought, st.text(max_size=3)))


@given(st.lists(pieces), st.booleans())
def test_what_the_events_say_is_what_the_items_are(said: list[MessageEvent], cut: bool) -> None:
    items, events = output_of(said, cut=cut)
    assert replayed(events) == items
