"""What the whole engine uses of a batch: side outputs, stream time, dead letters, accounting."""
