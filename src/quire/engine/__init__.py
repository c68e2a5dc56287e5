"""The engine: a core that computes steps, and front ends that turn text into steps and back."""
