"""The routes of the REST view."""
