"""What a run is made of while it executes: its state, its tasks, its steps and threads, and how it is torn down."""
