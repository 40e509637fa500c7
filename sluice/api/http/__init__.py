"""HTTP: routes, replies, problem documents, the response cache and the OpenAPI description."""
