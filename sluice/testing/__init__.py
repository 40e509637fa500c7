"""What tests and the demo run against."""
