"""openai-agents: an agent with a tool, by chat completions and by responses, whole and streamed. Arguments: address, model."""

import asyncio
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

url, model = sys.argv[1:3]
set_tracing_disabled(True)
client = AsyncOpenAI(base_url=url, api_key="not-needed")
asked: list[str] = []


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    asked.append(city)
    return f"It is sunny in {city}."


async def main() -> None:
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        agent = Agent(
            name="Weather",
            instructions="You answer in one short sentence.",
            model=kind(model=model, openai_client=client),
            model_settings=ModelSettings(temperature=0, max_tokens=400, tool_choice="required"),
            tools=[get_weather],
        )
        asked.clear()
        result = await Runner.run(agent, "What is the weather in Paris?", max_turns=3)
        assert asked, "the tool was not called"
        assert isinstance(result.final_output, str)
        print(kind.__name__, "run")
        asked.clear()
        streamed = Runner.run_streamed(agent, "What is the weather in Paris?", max_turns=3)
        events = [event.type async for event in streamed.stream_events()]
        assert asked
        assert "raw_response_event" in events
        assert streamed.final_output == result.final_output
        print(kind.__name__, "stream")


asyncio.run(main())
