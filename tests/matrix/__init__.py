"""`make matrix`: installs and tries Sluice with each combination of versions in `cells.py`, and writes docs/versions.md."""
