"""The operators and the parts around them as Triton kernels, for GPUs."""
