"""Builds the small story model that ships inside the package."""
