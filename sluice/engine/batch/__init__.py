"""Parts of a batch that all rooms share: side outputs, checkpoint, stream time, dead letters, accounting, topics."""
