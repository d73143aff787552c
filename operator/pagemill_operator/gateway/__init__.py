"""`pagemill gateway`: the streaming proxy of one namespace, for deployments that sleep or whose requests are spread by us."""
