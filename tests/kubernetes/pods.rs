//! Every pod of the chart passes Pod Security "restricted", and has what the node needs besides.

use serde_json::{Value, json};

use crate::releases::{of_kind, patched, rendered};

/// Kinds of volumes that "restricted" permits.
const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn items<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> {
    value[key].as_array().into_iter().flatten()
}

/// Violations of Pod Security "restricted" (Pod Security Standards), which contains "baseline".
fn restricted(pod: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    let mut refuse = |broken: bool, rule: &str| {
        if broken {
            violations.push(rule.to_owned());
        }
    };
    for name in ["hostNetwork", "hostPID", "hostIPC"] {
        refuse(pod[name] == true, name);
    }
    for volume in items(pod, "volumes") {
        let kinds = volume.as_object().into_iter().flat_map(|volume| volume.keys());
        refuse(kinds.filter(|key| *key != "name").any(|kind| !VOLUMES.contains(&kind.as_str())), "volumes");
    }
    let context = &pod["securityContext"];
    refuse(context["runAsNonRoot"] != true, "runAsNonRoot");
    refuse(context["runAsUser"] == 0, "runAsUser");
    refuse(context["seccompProfile"]["type"] != "RuntimeDefault", "seccompProfile");
    for name in ["sysctls", "seLinuxOptions", "appArmorProfile", "windowsOptions"] {
        refuse(context.get(name).is_some(), name);
    }
    let containers = ["initContainers", "containers", "ephemeralContainers"];
    for container in containers.into_iter().flat_map(|kind| items(pod, kind)) {
        let context = &container["securityContext"];
        refuse(context["allowPrivilegeEscalation"] != false, "allowPrivilegeEscalation");
        refuse(context["privileged"] == true, "privileged");
        refuse(!items(&context["capabilities"], "drop").any(|drop| drop == "ALL"), "capabilities.drop");
        refuse(items(&context["capabilities"], "add").next().is_some(), "capabilities.add");
        refuse(context["runAsNonRoot"] == false, "container runAsNonRoot");
        refuse(context["runAsUser"] == 0, "container runAsUser");
        let seccomp = context["seccompProfile"]["type"].as_str();
        refuse(seccomp.is_some_and(|kind| kind != "RuntimeDefault"), "container seccompProfile");
        for name in ["procMount", "seLinuxOptions", "appArmorProfile", "windowsOptions"] {
            refuse(context.get(name).is_some(), name);
        }
        refuse(items(container, "ports").any(|port| port.get("hostPort").is_some()), "hostPort");
        refuse(context["readOnlyRootFilesystem"] != true, "readOnlyRootFilesystem");
    }
    violations
}

fn pods(report: &Value) -> Vec<&Value> {
    let templates = of_kind(report, "StatefulSet").map(|set| &set["spec"]["template"]["spec"]);
    templates.chain(of_kind(report, "Pod").map(|pod| &pod["spec"])).collect()
}

#[test]
fn every_pod_is_restricted_and_has_no_token_of_its_own() {
    for (name, report) in rendered(&[]) {
        let pods = pods(&report);
        assert!(!pods.is_empty(), "{name}");
        for pod in pods {
            assert_eq!(restricted(pod), Vec::<String>::new(), "{name}");
            assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
            assert_eq!(pod["enableServiceLinks"], false, "{name}");
            assert_eq!(pod["securityContext"]["fsGroup"], 65532, "{name}");
            assert_eq!(pod["securityContext"]["fsGroupChangePolicy"], "OnRootMismatch", "{name}");
        }
    }
}

#[test]
fn pod_that_is_not_restricted_is_reported() {
    let (_, report) = rendered(&[]).swap_remove(0);
    let good = pods(&report)[0].clone();
    let container = |patch: Value| {
        let mut pod = good.clone();
        pod["containers"][0] = patched(&pod["containers"][0], &patch);
        pod
    };
    let of_pod = |patch: Value| patched(&good, &patch);
    for (bad, rule) in [
        (of_pod(json!({"hostNetwork": true})), "hostNetwork"),
        (of_pod(json!({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]})), "volumes"),
        (of_pod(json!({"securityContext": {"runAsNonRoot": null}})), "runAsNonRoot"),
        (of_pod(json!({"securityContext": {"runAsUser": 0}})), "runAsUser"),
        (of_pod(json!({"securityContext": {"seccompProfile": null}})), "seccompProfile"),
        (of_pod(json!({"securityContext": {"sysctls": []}})), "sysctls"),
        (
            container(json!({"securityContext": {"allowPrivilegeEscalation": null}})),
            "allowPrivilegeEscalation",
        ),
        (container(json!({"securityContext": {"privileged": true}})), "privileged"),
        (container(json!({"securityContext": {"capabilities": {"drop": ["NET_RAW"]}}})), "capabilities.drop"),
        (container(json!({"securityContext": {"capabilities": {"add": ["SYS_TIME"]}}})), "capabilities.add"),
        (container(json!({"securityContext": {"runAsUser": 0}})), "container runAsUser"),
        (container(json!({"securityContext": {"runAsNonRoot": false}})), "container runAsNonRoot"),
        (container(json!({"securityContext": {"readOnlyRootFilesystem": null}})), "readOnlyRootFilesystem"),
        (container(json!({"ports": [{"containerPort": 1, "hostPort": 1}]})), "hostPort"),
    ] {
        assert_eq!(restricted(&bad), [rule]);
    }
}

/// With fewer machines than nodes a pod waits: two nodes on one machine would be lost together. Development runs on one.
#[test]
fn no_two_nodes_share_a_machine() {
    for (name, report) in rendered(&[]) {
        for set in of_kind(&report, "StatefulSet") {
            let spread = items(&set["spec"]["template"]["spec"], "topologySpreadConstraints");
            let of_machines = spread.filter(|row| row["topologyKey"] == "kubernetes.io/hostname");
            let [row] = of_machines.collect::<Vec<_>>()[..] else { panic!("{name}") };
            let is_development = name == "development";
            let otherwise = if is_development { "ScheduleAnyway" } else { "DoNotSchedule" };
            assert_eq!(
                (&row["maxSkew"], &row["whenUnsatisfiable"]),
                (&json!(1), &json!(otherwise)),
                "{name}"
            );
            let replicas = &set["spec"]["replicas"];
            let expected = if *replicas == 1 || is_development { &Value::Null } else { replicas };
            assert_eq!(&row["minDomains"], expected, "{name}");
        }
    }
}

#[test]
fn grace_period_is_longer_than_the_longest_stop() {
    use trust_fabric::limits;
    let served = limits::SHUTDOWN_DELAY_MAX.max(limits::HAND_OVER_TIMEOUT);
    let longest = served + limits::DRAIN_TIMEOUT + limits::STOP_TIMEOUT;
    for (name, report) in rendered(&[]) {
        for set in of_kind(&report, "StatefulSet") {
            let secs = set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].as_u64();
            assert!(secs.is_some_and(|secs| secs > longest.as_secs() + 5), "{name}: {secs:?}");
        }
    }
}
