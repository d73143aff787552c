"""langchain-openai: chat, stream, tools, schema, embeddings. Arguments as litellm_program's."""

import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

url, model, embed_url, embedder = sys.argv[1:]
chat = ChatOpenAI(base_url=url, api_key="not-needed", model=model, temperature=0, max_completion_tokens=40)
question = "What is the capital of France?"

answer = chat.invoke(question)
assert "Paris" in answer.content, answer
assert answer.usage_metadata["output_tokens"] > 0
print("chat")

assert "".join(chunk.content for chunk in chat.stream(question)) == answer.content
print("stream")


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


called = chat.bind_tools([get_weather], tool_choice="required").invoke("What is the weather in Paris?")
(call,) = called.tool_calls
assert call["name"] == "get_weather"
assert set(call["args"]) == {"city"}
print("tools")


class Capital(BaseModel):
    """A country and its capital."""

    country: str
    capital: str


shaped = chat.with_structured_output(Capital, method="json_schema").invoke(question)
assert isinstance(shaped, Capital), shaped
print("schema")

# Its default is to send token ids of OpenAI's tokenizer; another model wants the text.
embeddings = OpenAIEmbeddings(
    base_url=embed_url, api_key="not-needed", model=embedder, check_embedding_ctx_length=False
)
assert [len(vector) for vector in embeddings.embed_documents(["a", "b"])] == [384, 384]
print("embeddings")
