"""GET /openapi.json: OpenAPI 3.1 of the serving port.

`bodies` makes the requests' schemas from the very types that validate them, `answers` describes what comes back, `paths` lists the
routes, `document` puts them together and serves them.
"""
