"""Towers that turn images into rows of a text model."""
