"""The ceilings: bare loops around a database, with nothing of an engine in them."""
