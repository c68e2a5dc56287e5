"""Who computes a step: this process (`uniproc`), or workers elsewhere."""
