"""One file for each architecture: how it differs from the plain decoder."""
