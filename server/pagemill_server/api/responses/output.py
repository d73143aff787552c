"""The items of a response as its text comes: reasoning, messages, function calls, and the events that tell of each step. Pure.

The whole answer and the streamed one are both made here: what the events have said, joined, is what `values` gives. Knows no HTTP
and no parser; fed by `endpoint` with the events of `text/message`.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pagemill_server.text.message import CallArguments, CallBegins, MessageEvent, Thought, Words

Event = dict[str, Any]  # without its sequence number
Logprobs = list[dict[str, Any]]  # as `api/logprobs` spells tokens


class Item(ABC):
    """One entry of `output`; `index` is its place there."""

    prefix: ClassVar[str]

    def __init__(self, index: int) -> None:
        self.id = f"{self.prefix}_{uuid.uuid4().hex}"
        self.index = index
        self.status = "in_progress"
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @abstractmethod
    def value(self) -> dict[str, Any]:
        """As it stands."""

    def opened(self) -> list[Event]:
        return [self._about("response.output_item.added")]

    @abstractmethod
    def more(self, text: str, logprobs: Logprobs) -> Event: ...

    def closed(self, status: str) -> list[Event]:
        self.status = status
        return [self._about("response.output_item.done")]

    def _about(self, kind: str) -> Event:
        return {"type": kind, "output_index": self.index, "item": self.value()}

    def _within(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.id, "output_index": self.index} | fields


class _Told(Item):
    """An item whose text is its one part."""

    stem: ClassVar[str]  # of its events' names

    def part(self) -> dict[str, Any]:
        return {"type": self.stem, "text": self.text}

    def opened(self) -> list[Event]:
        added = super().opened()
        added[0]["item"]["content"] = []
        return [*added, self._within("response.content_part.added", content_index=0, part=self.part())]

    def more(self, text: str, logprobs: Logprobs) -> Event:
        self._texts.append(text)
        return self._within(f"response.{self.stem}.delta", content_index=0, delta=text)

    def closed(self, status: str) -> list[Event]:
        return [
            self._done(),
            self._within("response.content_part.done", content_index=0, part=self.part()),
            *super().closed(status),
        ]

    def _done(self) -> Event:
        return self._within(f"response.{self.stem}.done", content_index=0, text=self.text)


class Reasoning(_Told):
    prefix, stem = "rs", "reasoning_text"

    def value(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "reasoning",
            "status": self.status,
            "summary": [],
            "content": [self.part()],
        }


class Message(_Told):
    prefix, stem = "msg", "output_text"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._logprobs: Logprobs = []

    def value(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": [self.part()],
        }

    def part(self) -> dict[str, Any]:
        return super().part() | {"annotations": [], "logprobs": list(self._logprobs)}

    def more(self, text: str, logprobs: Logprobs) -> Event:
        self._logprobs += logprobs
        return super().more(text, logprobs) | {"logprobs": logprobs}

    def _done(self) -> Event:
        return super()._done() | {"logprobs": list(self._logprobs)}


class Call(Item):
    prefix = "fc"

    def __init__(self, index: int, call_id: str, name: str) -> None:
        super().__init__(index)
        self._call_id = call_id
        self._name = name

    def value(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self.text,
        }

    def more(self, text: str, logprobs: Logprobs) -> Event:
        self._texts.append(text)
        return self._within("response.function_call_arguments.delta", delta=text)

    def closed(self, status: str) -> list[Event]:
        done = self._within("response.function_call_arguments.done", name=self._name, arguments=self.text)
        return [done, *super().closed(status)]


class Output:
    """All items of one response, at most one of them open. `call_id` makes the id of a call."""

    def __init__(self, call_id: Callable[[], str]) -> None:
        self._call_id = call_id
        self._items: list[Item] = []
        self._open: Item | None = None

    def values(self) -> list[dict[str, Any]]:
        return [item.value() for item in self._items]

    def take(self, event: MessageEvent, logprobs: Logprobs | None = None) -> list[Event]:
        """`logprobs` are of the tokens whose words the event brings; those that come late bring words of no length."""
        match event:
            case Words(text):
                return self._more(Message, text, logprobs or [])
            case Thought(text):
                return self._more(Reasoning, text, [])
            case CallBegins(_, name):
                return [*self._close("completed"), *self._begin(Call(len(self._items), self._call_id(), name))]
            case CallArguments(_, text):
                assert isinstance(self._open, Call), "a call's arguments come before anything else begins"
                return [self._open.more(text, [])] if text else []

    def end(self, *, cut: bool) -> list[Event]:
        """The text has ended; `cut` says by its length. Words that never came are a message too, for clients look for one."""
        events = self._close("incomplete" if cut else "completed")
        if not cut and all(isinstance(item, Reasoning) for item in self._items):
            events += [*self._begin(Message(len(self._items))), *self._close("completed")]
        return events

    def _more(self, kind: type[Message | Reasoning], text: str, logprobs: Logprobs) -> list[Event]:
        if isinstance(self._open, kind):
            return [self._open.more(text, logprobs)] if text or logprobs else []
        if not text:
            return []
        began = [*self._close("completed"), *self._begin(kind(len(self._items)))]
        assert self._open is not None
        return [*began, self._open.more(text, logprobs)]

    def _begin(self, item: Item) -> Sequence[Event]:
        self._items.append(item)
        self._open = item
        return item.opened()

    def _close(self, status: str) -> list[Event]:
        item, self._open = self._open, None
        return [] if item is None else item.closed(status)
