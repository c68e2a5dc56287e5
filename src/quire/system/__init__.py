"""The machine and the process: environment, hardware, memory, parents."""
