"""The scheduler extender: which node and which linked set a pod gets, and the one write that says so."""
