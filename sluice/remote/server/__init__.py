"""State servers: a process that answers for the shards on its host, and never asks on."""
