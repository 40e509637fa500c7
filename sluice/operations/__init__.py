"""Operations on the state of pipelines, beside their runs. `copying` is the one way in which they copy shards."""
