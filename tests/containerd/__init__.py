"""Tests with a real containerd, started by them and private to them."""
