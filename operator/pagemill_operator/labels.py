"""The few names by which the operator knows its own objects again. No logic."""

from __future__ import annotations

GROUP = "pagemill.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LLMDeployment"
PLURAL = "llmdeployments"
FIELD_MANAGER = "pagemill-operator"

DEPLOYMENT_LABEL = "pagemill.dev/deployment"  # on every child and its pods: the LLMDeployment's name
NAME_LABEL = "app.kubernetes.io/name"  # "pagemill-server"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"  # "pagemill-operator"
SPEC_HASH_ANNOTATION = (
    "pagemill.dev/spec-hash"  # on an applied child: hash of what was applied, so that an unchanged world needs no write
)
TEMPLATE_HASH_ANNOTATION = "pagemill.dev/template-hash"  # on a pod: hash of what of the spec rolls pods (template_hash)
IMAGE_ANNOTATION = (
    "pagemill.dev/image"  # on a Deployment: the image that its pods were given, kept until a field rolls them
)
PULL_POLICY_ANNOTATION = "pagemill.dev/image-pull-policy"  # and when it is pulled
SERVER_NAME = "pagemill-server"  # NAME_LABEL's value on whatever serves

# Of a resource's own labels only these go to its children: Argo CD prunes what carries another object's tracking label.
COPIED_LABELS = ("app.kubernetes.io/part-of", "app.kubernetes.io/component")
