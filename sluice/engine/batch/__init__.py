"""Parts of a batch that the whole engine uses: side outputs, checkpoint, stream time, dead letters, accounting."""
