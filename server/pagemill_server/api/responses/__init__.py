"""POST /v1/responses without a store: https://platform.openai.com/docs/api-reference/responses and https://www.openresponses.org.

`endpoint` is the route; `body` and `items` read what a client sends, `output` makes the items of the answer with the events that
tell of them, `resource` the response around them.
"""
