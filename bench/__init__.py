"""Durably, its peers and the bare database, measured side by side in one run: `python -m bench`."""
