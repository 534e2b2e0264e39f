"""Commands beside the agent: nothing in here is installed, nothing in agent/ imports it."""
