"""The ops of the CPU, in C++: each module checks what the kernels cannot, and calls them."""
