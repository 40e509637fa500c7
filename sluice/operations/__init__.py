"""Operations on the state of pipelines, between batches or beside them. `copying` is how all of them copy shards."""
