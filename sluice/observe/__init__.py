"""What pipelines have done and still have to do: audits, health, unread records, metrics."""
