"""OpenAI's HTTP API over the engine: routes, request bodies, streams."""
