"""The routes of the REST view, and the page."""
