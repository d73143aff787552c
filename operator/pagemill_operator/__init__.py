"""The Kubernetes operator: one level-triggered reconcile from an LLMDeployment to its pods and back to its status. No torch."""
