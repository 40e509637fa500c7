"""What every part of a batch shares: side outputs, checkpoint, stream time, dead letters, accounting."""
