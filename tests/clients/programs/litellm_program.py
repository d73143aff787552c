"""litellm: chat, stream, tools, schema, embeddings. Arguments: a server that generates and its model, one that embeds and its."""

import json
import sys

import litellm

url, model, embed_url, embedder = sys.argv[1:]
where = {"model": f"openai/{model}", "api_base": url, "api_key": "not-needed", "temperature": 0, "max_tokens": 40}
question = [{"role": "user", "content": "What is the capital of France?"}]

answer = litellm.completion(messages=question, **where)
assert "Paris" in answer.choices[0].message.content, answer
assert answer.usage.completion_tokens > 0
print("chat")

chunks = list(litellm.completion(messages=question, stream=True, stream_options={"include_usage": True}, **where))
streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert streamed == answer.choices[0].message.content, streamed
print("stream")

tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
called = litellm.completion(
    messages=[{"role": "user", "content": "What is the weather in Paris?"}],
    tools=[tool],
    tool_choice={"type": "function", "function": {"name": "get_weather"}},
    **where,
)
(call,) = called.choices[0].message.tool_calls
assert call.function.name == "get_weather"
assert isinstance(json.loads(call.function.arguments)["city"], str)
print("tools")

schema = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
shaped = litellm.completion(
    messages=question,
    response_format={"type": "json_schema", "json_schema": {"name": "capital", "schema": schema, "strict": True}},
    **where,
)
assert json.loads(shaped.choices[0].message.content)["city"] in ("Paris", "Rome")
print("schema")

vectors = litellm.embedding(model=f"openai/{embedder}", input=["a", "b"], api_base=embed_url, api_key="not-needed")
assert [len(item["embedding"]) for item in vectors.data] == [384, 384]
print("embeddings")
