"""POST /v1/responses without a store: https://platform.openai.com/docs/api-reference/responses and https://www.openresponses.org.

`endpoint` is the route; `body`, `items` and `turns` read what a client sends; `words` and `output` make the items of the answer
with the events that tell of them, `resource` the response around them.
"""
