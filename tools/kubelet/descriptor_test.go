package main

import (
	"testing"

	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func TestTheDescriptorIsWhole(t *testing.T) {
	files, err := protodesc.NewFiles(criDescriptor()) // fails if an import is missing
	if err != nil {
		t.Fatal(err)
	}
	for service, method := range map[protoreflect.FullName]protoreflect.Name{
		"runtime.v1.RuntimeService": "RunPodSandbox",
		"runtime.v1.ImageService":   "PullImage",
	} {
		found, err := files.FindDescriptorByName(service)
		if err != nil {
			t.Fatal(err)
		}
		if found.(protoreflect.ServiceDescriptor).Methods().ByName(method) == nil {
			t.Errorf("%s has no %s", service, method)
		}
	}
}

func TestArgumentsThatMeanNothing(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"a", "b", "c"}} {
		if do(args) == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
