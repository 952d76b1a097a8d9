package main

import (
	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// wishOf says what a Pod asks for. How many it needs at once is counted as the scheduler counts it.
func wishOf(pod *v1.Pod) wish {
	total := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[gpuResource]
	made := wish{pod: string(pod.UID), total: int(total.Value())}
	for _, container := range pod.Spec.InitContainers {
		goesOn := container.RestartPolicy != nil && *container.RestartPolicy == v1.ContainerRestartPolicyAlways
		made.containers = append(made.containers, ask{container.Name, gpusAsked(&container), !goesOn})
	}
	for _, container := range pod.Spec.Containers {
		made.containers = append(made.containers, ask{container.Name, gpusAsked(&container), false})
	}
	return made
}

func gpusAsked(container *v1.Container) int {
	request := container.Resources.Requests[gpuResource]
	return int(request.Value())
}
