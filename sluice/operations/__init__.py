"""Operations on the state of pipelines, beside their runs: rebuild, repartition, restore, move, back up, import."""
