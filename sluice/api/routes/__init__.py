"""The routes of the REST view and of the page."""
