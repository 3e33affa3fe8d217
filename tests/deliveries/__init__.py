"""Deliveries, from the publication to the peer."""
