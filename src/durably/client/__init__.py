"""What an application says to the store: enqueue, handles, dead letters, queues, keys. Written once, two faces."""
