"""Small helpers: types of arrays, files, processes, start-up, caches."""
