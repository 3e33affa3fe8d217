"""Operations that run at the same time on PostgreSQL, in every order of their statements.

footprint   which tables a statement reads, shares and writes
party       one operation in mid-flight, on a connection of its own
schedule    the orders in which the parties' steps can be taken
acts        what the parties do
maker       builds the states in which they begin
worlds      those states, and what can be done in each
snapshot    what the database says afterwards, and what it must never say
settle      everything that was accepted still ends, once the dust has settled
arena       one world, its parties, and the verdict on a pair of acts
"""
