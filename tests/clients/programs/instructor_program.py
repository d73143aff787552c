"""instructor: a typed answer through a tool and through a schema, whole and streamed in parts. Arguments: address, model."""

import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


url, model = sys.argv[1:3]
client = OpenAI(base_url=url, api_key="not-needed")
messages = [{"role": "user", "content": "Extract: Jason is 25 years old."}]

for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    typed = instructor.from_openai(client, mode=mode)
    settings = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 100, "max_retries": 0}
    person = typed.chat.completions.create(response_model=Person, **settings)
    assert isinstance(person, Person), person
    print(mode.name, "whole")
    parts = list(typed.chat.completions.create_partial(response_model=Person, **settings))
    assert (parts[-1].name, parts[-1].age) != (None, None), parts[-1]  # the tool has another name, and so the prompt
    print(mode.name, "stream")
