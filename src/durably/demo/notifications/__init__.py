"""The demo of notifications: what happened, for people with wishes, and a ledger of what reached whom."""
