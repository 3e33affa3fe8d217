"""The soak: producers and workers are real processes, everything that can break is broken, and a ledger is the judge.

`python -m tests.soak --minutes 10 --store both --report soak.md` runs it for as long as asked.
"""
