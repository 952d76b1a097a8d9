// The kubelet of the course's machines: upstream's own kubelet with a machine of a declared size under it.
//
// Run is cmd/kubelet's own function. Three of its dependencies are ours, because they look at, or change, the
// computer that all machines share:
//
//   - cadvisor.Interface, which says how large the machine is and how much of it is used (machine.go, usage.go);
//   - cm.ContainerManager, which would make cgroups and hand out devices (manager.go; GPUs: gpus.go, assign.go, ledger.go);
//   - oom.OOMAdjuster, which would write the kubelet's own oom_score_adj.
//
// Everything else is upstream code: Pods, volumes, probes, images, status, eviction, the HTTPS server, the Lease.
// The runtime, which starts containers, is ours and is reached through the container runtime interface (CRI).
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // registers the metrics of its API client
	_ "k8s.io/component-base/metrics/prometheus/version"  // registers the metric of its version
	"k8s.io/component-base/version"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/configfiles"
	utilfs "k8s.io/kubernetes/pkg/util/filesystem"
	"k8s.io/kubernetes/pkg/util/oom"
)

const usageText = `kubelet CONFIG.yaml SPEC.json      run it: a KubeletConfiguration, and what is special to this machine (spec.go)
kubelet --version                  say which Kubernetes this is
kubelet --cri-descriptor FILE      write the messages of the CRI as a FileDescriptorSet of protobuf
`

func main() {
	if err := do(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet:", err)
		os.Exit(1)
	}
}

func do(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "--version":
		fmt.Println("Kubernetes", version.Get())
		return nil
	case len(args) == 2 && args[0] == "--cri-descriptor":
		return writeCRIDescriptor(args[1])
	case len(args) == 2:
		return run(genericapiserver.SetupSignalContext(), args[0], args[1])
	}
	fmt.Fprint(os.Stderr, usageText)
	return fmt.Errorf("these arguments are none of the three: %q", args)
}

func run(ctx context.Context, configFile, specFile string) error {
	spec, err := readSpec(specFile)
	if err != nil {
		return err
	}
	config, err := readConfig(ctx, configFile)
	if err != nil {
		return fmt.Errorf("%s: %w", configFile, err)
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(config.FeatureGates); err != nil {
		return err
	}
	logs.InitLogs()
	defer logs.FlushLogs()
	if err := logsapi.ValidateAndApply(&config.Logging, utilfeature.DefaultFeatureGate); err != nil {
		return err
	}
	server, err := server(spec, config)
	if err != nil {
		return err
	}
	dependencies, err := app.UnsecuredDependencies(ctx, server, utilfeature.DefaultFeatureGate)
	if err != nil {
		return err
	}
	if dependencies.CAdvisorInterface, err = newMachine(spec); err != nil {
		return err
	}
	if dependencies.ContainerManager, err = newManager(spec); err != nil {
		return err
	}
	dependencies.OOMAdjuster = oom.NewFakeOOMAdjuster()
	return app.Run(ctx, server, dependencies, utilfeature.DefaultFeatureGate) // validates flags and configuration
}

func readConfig(ctx context.Context, path string) (*kubeletconfig.KubeletConfiguration, error) {
	loader, err := configfiles.NewFsLoader(&utilfs.DefaultFs{}, path)
	if err != nil {
		return nil, err
	}
	return loader.Load(ctx)
}

// server puts what is special to this machine into the flags and the configuration of a kubelet.
func server(spec *Spec, config *kubeletconfig.KubeletConfiguration) (*options.KubeletServer, error) {
	flags := options.NewKubeletFlags()
	flags.KubeConfig = spec.Kubeconfig
	flags.HostnameOverride = spec.Name
	flags.NodeIP = spec.Address
	flags.RootDirectory = spec.Root
	flags.CertDirectory = filepath.Join(spec.Root, "pki")
	flags.NodeLabels = spec.Labels

	taints, err := spec.parsedTaints()
	if err != nil {
		return nil, err
	}
	config.RegisterWithTaints = taints
	config.ProviderID = spec.ProviderID
	config.Address = spec.Address
	config.TLSCertFile, config.TLSPrivateKeyFile = spec.TLSCert, spec.TLSKey
	config.Authentication.X509.ClientCAFile = spec.ClientCA
	config.ContainerRuntimeEndpoint = "unix://" + spec.CRISocket
	config.PodLogsDir = spec.PodLogs
	return &options.KubeletServer{KubeletFlags: *flags, KubeletConfiguration: *config}, nil
}
