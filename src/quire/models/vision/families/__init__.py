"""One file for each family of models that read images."""
