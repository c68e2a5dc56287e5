"""Recording where time and energy go. Importing this package loads nothing."""
