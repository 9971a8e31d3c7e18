"""Tests of the Helm chart, the Dockerfile and what is rendered from them."""
