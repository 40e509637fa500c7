"""One run: lease, compatibility check, the loop over batches, and each batch's query."""
