"""Small helpers without a subject of their own: types of arrays, files, processes, start-up, caches."""
