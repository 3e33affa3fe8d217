"""Input that nobody should send and rows that nobody should write: a clear error, and no harm to anyone else."""
