"""The machine: processes, shared memory, the GPU."""
