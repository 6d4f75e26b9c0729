"""Kernels that skip zeros, generated for this machine's processor."""
