"""The one interface to a cluster, and its two implementations: Kubernetes, and the processes of this machine."""
