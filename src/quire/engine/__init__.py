"""The engine core: schedule, execute, process, again."""
