"""Parts of a batch that the whole engine uses: side outputs, stream time, dead letters, accounting."""
