module pagemill.dev/tests/cluster/crds

go 1.26.0

// Never built: testbed/crds.py takes CRDs from the module cache.
require sigs.k8s.io/gateway-api v1.4.1
