"""The few names by which the operator knows its own objects again. No logic."""

from __future__ import annotations

GROUP = "pagemill.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LLMDeployment"
PLURAL = "llmdeployments"
FIELD_MANAGER = "pagemill-operator"

DEPLOYMENT_LABEL = "pagemill.dev/deployment"  # on every child and its pods: the LLMDeployment's name
# Its value on a namespace's gateway: with dots, so no LLMDeployment's name.
GATEWAY_LABEL_VALUE = f"gateway.{GROUP}"
NAME_LABEL = "app.kubernetes.io/name"  # "pagemill-server"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"  # "pagemill-operator"
SPEC_HASH_ANNOTATION = (
    "pagemill.dev/spec-hash"  # on an applied child: hash of what was applied, so that an unchanged world needs no write
)
TEMPLATE_HASH_ANNOTATION = "pagemill.dev/template-hash"  # on a pod: hash of what of the spec rolls pods (template_hash)
# On a Deployment: JSON, the pod template as it was rendered, kept until a field rolls the pods.
TEMPLATE_ANNOTATION = "pagemill.dev/template"
# On a pod: JSON, a short hash of each restart field that it was made from.
TEMPLATE_FIELDS_ANNOTATION = "pagemill.dev/template-fields"
# On a Deployment: JSON, what the preflight of its template found.
PREFLIGHT_ANNOTATION = "pagemill.dev/preflight"
# On a Deployment: hash of the management Secret that was applied, which can't be read back.
SECRET_ANNOTATION = "pagemill.dev/secret-hash"
DRAIN_ANNOTATION = "pagemill.dev/drain-since"  # on a pod: when the operator began to empty it, because it is to go
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"  # on a pod: who goes first when replicas shrink
# On the gateway's Deployment: JSON, the port on which it listens for each deployment.
GATEWAY_PORTS_ANNOTATION = "pagemill.dev/gateway-ports"
REFUSED_ANNOTATION = (
    "pagemill.dev/refused"  # on the gateway's ServiceAccount: what else of it the cluster refuses, in its words
)
ROUTE_ENDS_ANNOTATION = "pagemill.dev/route-ends"  # on a Service with a route that is no longer wanted: when it goes
SERVER_NAME = "pagemill-server"  # NAME_LABEL's value on whatever serves
GATEWAY_NAME = "pagemill-gateway"  # and on the gateway of a namespace and its pods
PREFLIGHT_NAME = "pagemill-preflight"  # and on the Job that looks at the model before, and its pod

# Of a resource's own labels only these go to its children: Argo CD prunes what carries another object's tracking label.
COPIED_LABELS = ("app.kubernetes.io/part-of", "app.kubernetes.io/component")
