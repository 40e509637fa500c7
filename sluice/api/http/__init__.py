"""HTTP, independent of Sluice's routes: parameters, replies, problem documents, OpenAPI."""
