//go:build tools

// Package critest pins the container runtime interface's own validation suite, which is a Go test and so cannot be a
// `tool` of go.mod. tests/live/test_critest.py builds it: go test -c sigs.k8s.io/cri-tools/cmd/critest
package critest

import (
	_ "sigs.k8s.io/cri-tools/pkg/benchmark"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)
