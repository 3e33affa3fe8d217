"""The peers as measured programs, each set up as its own documentation recommends for throughput."""
