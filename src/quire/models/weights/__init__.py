"""Where a model's weights come from, how they are stored, and which rank has which."""
