"""How fast a store is: programs that work, and what measures them from outside."""
