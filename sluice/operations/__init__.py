"""Changes or copies whole states: rebuild, repartition, restore, move, back up, import."""
