"""What changes or copies the whole state of a pipeline: rebuild, repartition, restore, move, back up, import."""
