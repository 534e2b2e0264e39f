"""The hook in real containers of the real runc: every test here needs root."""
