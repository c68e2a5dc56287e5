"""Small classes that hold a layer's weights; their arithmetic is all in `ops`."""
