"""The response object around the items: what the request asked for and how it went. Pure.

https://platform.openai.com/docs/api-reference/responses/object. Its fixed half is made with the job; `reply` has
the rest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pagemill_server.api.prepare import Job
from pagemill_server.api.responses.body import Format, ResponseBody
from pagemill_server.errors import ApiError


@dataclass(frozen=True, slots=True)
class ResponseJob(Job):
    """A job that makes a response; `repeats` are the fields of it that say the request again."""

    repeats: Mapping[str, Any] = None  # type: ignore[assignment]  # the fields before it have defaults; `response_job` fills it


def response_job(job: Job, body: ResponseBody) -> ResponseJob:
    same = {field.name: getattr(job, field.name) for field in fields(job)} | {"id": job.id.replace("-", "_", 1)}
    return ResponseJob(**same, repeats=_repeats(job, body))


def in_progress(job: ResponseJob) -> dict[str, Any]:
    return _response(job, "in_progress", [])


def finished(
    job: ResponseJob, output: Sequence[Mapping[str, Any]], usage: Mapping[str, Any], *, cut: bool
) -> dict[str, Any]:
    """`cut`: the length ended it."""
    if cut:
        details = {"reason": "max_output_tokens"}
        return _response(job, "incomplete", output, usage=usage, incomplete_details=details)
    return _response(job, "completed", output, usage=usage, completed_at=int(time.time()))


def failed(job: ResponseJob, output: Sequence[Mapping[str, Any]], error: ApiError) -> dict[str, Any]:
    """Of OpenAI's codes one is for what a server does wrong."""
    return _response(job, "failed", output, error={"code": "server_error", "message": error.message})


def _response(job: ResponseJob, status: str, output: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": job.id,
        "object": "response",
        "created_at": job.created,
        "completed_at": None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": job.model,
        "output": output,
        "usage": None,
    }
    return {**made, **job.repeats, **more}


def usage_of(chat: Mapping[str, Any]) -> dict[str, Any]:
    """Chat's usage object in the words of responses."""
    details = chat.get("completion_tokens_details") or {}
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": chat["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,  # nothing is paid for writing it
        },
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens", 0)},
        "total_tokens": chat["total_tokens"],
    }


def _repeats(job: Job, body: ResponseBody) -> dict[str, Any]:
    """Sampling as it is, with the model's own defaults."""
    sampling = job.requests[0].sampling
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "previous_response_id": None,
        "background": False,
        "store": False,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "text": {"format": _format(body.format), "verbosity": "medium"},
        "tool_choice": body.tool_choice if body.tool_choice is not None else "auto",
        "tools": [_tool(tool.model_dump()) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "disabled",
        "user": body.user,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
    }


def _tool(sent: Mapping[str, Any]) -> dict[str, Any]:
    """All keys are there; nobody asked is not strict."""
    return {**sent, "strict": bool(sent["strict"])}


def _format(asked: Format) -> dict[str, Any]:
    if asked.type != "json_schema":
        return {"type": asked.type}
    return {**asked.model_dump(by_alias=True), "strict": bool(asked.strict)}
