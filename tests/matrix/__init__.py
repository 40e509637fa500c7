"""`make matrix`: tries Sluice with each combination of versions in `cells.py`."""
