"""Reading topics: records become typed columns, or dead letters if they cannot be decoded."""
