"""The parts of a batch that the whole engine uses, such as side outputs and stream time."""
