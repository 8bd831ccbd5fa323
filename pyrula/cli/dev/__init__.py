"""`pyrula dev FILE`: a user's bindings on an embedded broker and a store in memory, fed with records at hand."""
