"""A model of lanes: records that leave their partition for the store and come home, checked by exhaustive search.

The store in it is no model: each step runs the code of `MemoryStore` on a copy of a state (`snapshots`), and
`test_stores` holds the scripts on a server to the same answers and states. Its users are modelled: the owner of a
partition (`owner`) as `pyrula.kafka` goes about it, the group, executors, clients, and what may go wrong with each
(`world`). `search` goes breadth first through all interleavings of a configuration (`setups`). What has to hold:

- *Nothing lost.* What Kafka counts as complete was completed, or the store has it.
- *One live body per key.* Bodies of the present owner and runs under a valid lease: one at most.
- *Order.* A record's first completion comes after those of all earlier ones of its key; at the end the last ones are
  in order too.
- *The floor.* No body starts in memory for a record if it, or a later one of its key, was handed over.
- *Once.* A record completes once, if nobody crashed, was expelled or lost a lease.
- *It comes home.* From every state one can be reached, without a further fault, where all is committed and all lanes
  are home.

A change of the protocol is a change of `owner` and `world`, in which the search then finds what it breaks. `mutants`
shows that it does: each leaves one rule out.
"""
