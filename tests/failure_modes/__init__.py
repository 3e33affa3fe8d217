"""Failures that bit users of other systems of this kind, and that no other test of ours would have caught."""
