"""Small helpers without a subject of their own: files, processes, start-up, caches."""
