"""One run: lease, compatibility check, the loop over batches, and the query that Spark runs for each."""
