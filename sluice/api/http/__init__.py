"""HTTP without Sluice's routes: parameters, replies, problem documents, the OpenAPI description."""
