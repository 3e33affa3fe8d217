"""The demo: a shop's work on one SQLite file, a worker that is killed, and a ledger that proves what became of it."""
