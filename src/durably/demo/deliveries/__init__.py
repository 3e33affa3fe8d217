"""The demo of deliveries: a stream of messages to five peers, and a ledger of what arrived where."""
