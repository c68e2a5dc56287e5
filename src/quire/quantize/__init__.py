"""Write quantized checkpoints: rounding methods, calibration and output formats."""
