package main

import (
	"os"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// writeCRIDescriptor writes the messages and services of the CRI that this kubelet was built with. The runtime, which
// is Python, makes its classes from them when it starts: so the two always speak the same version of the interface.
func writeCRIDescriptor(path string) error {
	data, err := proto.Marshal(criDescriptor())
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

func criDescriptor() *descriptorpb.FileDescriptorSet {
	set := &descriptorpb.FileDescriptorSet{}
	var add func(file protoreflect.FileDescriptor)
	seen := map[string]bool{}
	add = func(file protoreflect.FileDescriptor) {
		if seen[file.Path()] {
			return
		}
		seen[file.Path()] = true
		for i := range file.Imports().Len() { // a reader wants what a file imports before the file
			add(file.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
	}
	add(runtimeapi.File_staging_src_k8s_io_cri_api_pkg_apis_runtime_v1_api_proto)
	return set
}
