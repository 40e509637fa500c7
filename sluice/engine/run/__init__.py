"""One run: lease, compatibility check, the loop over batches, and the query for each of them."""
