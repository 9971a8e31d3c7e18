"""Generated stubs of the kubelet's gRPC APIs; the texts are in protos/, `nox -s protos` generates these again."""
