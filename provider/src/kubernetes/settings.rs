//! The part of the provider's configuration that is about Kubernetes, with names as in the provider `kubernetes`.

use std::path::{Path, PathBuf};

use super::exec::Exec;
use super::{Access, Certificate, Server, Token, User, kubeconfig};
use crate::diagnostic::Diagnostic;
use crate::schema::{Attribute, Type};
use crate::value::{Object, Value};

/// Default namespace of fabrics.
pub const NAMESPACE: Attribute = Attribute::optional(
    "namespace",
    Type::Text,
    "Namespace of a `svc_fabric` that states none; the default is `default`.",
);

/// The API server.
pub const KUBERNETES: Attribute = Attribute::optional(
    "kubernetes",
    Type::Object(ATTRIBUTES),
    "The API server of Kubernetes and the user, for `svc_fabric` only. Otherwise `KUBE_CONFIG_PATH` or `KUBECONFIG`, and in \
     a pod its own API server and service account.",
);

const ATTRIBUTES: &[Attribute] = &[
    Attribute::optional(
        "config_path",
        Type::Text,
        "A file of `kubectl`. Not together with `config_paths` or `host`.",
    ),
    Attribute::optional("config_paths", Type::Texts, "Several files; of the same name the first is used."),
    Attribute::optional(
        "config_context",
        Type::Text,
        "The context, instead of the current one of the files.",
    ),
    Attribute::optional("host", Type::Text, "The API server, `https://host:port`, instead of a file."),
    Attribute::optional("token", Type::Text, "Bearer token for `host`. Accepts ephemeral values.")
        .sensitive(),
    Attribute::optional("cluster_ca_certificate", Type::Text, "The only trusted CAs of `host`, in PEM."),
    Attribute::optional("client_certificate", Type::Text, "Client certificate for `host`, in PEM."),
    Attribute::optional("client_key", Type::Text, "Its private key, in PEM.").sensitive(),
    Attribute::optional("exec", Type::Object(EXEC), "A program that gives the credential for `host`."),
];

const EXEC: &[Attribute] = &[
    Attribute::required("api_version", Type::Text, "`client.authentication.k8s.io/v1` or `…/v1beta1`."),
    Attribute::required("command", Type::Text, "The program."),
    Attribute::optional("args", Type::Texts, "Its arguments."),
    Attribute::optional("env", Type::TextMap, "Variables of its environment, besides those of the provider."),
];

/// The attributes that describe `host`.
const OF_HOST: [&str; 5] = ["token", "cluster_ca_certificate", "client_certificate", "client_key", "exec"];

/// Where a pod finds the credentials of its service account.
const IN_POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Whether an attribute of the provider is about Kubernetes alone.
#[must_use]
pub fn is_own(attribute: &str) -> bool {
    matches!(attribute, "namespace" | "kubernetes")
}

/// Rules between the attributes.
#[must_use]
pub fn validate(config: &Object) -> Vec<Diagnostic> {
    let Some(stated) = config.object("kubernetes") else { return Vec::new() };
    let is_stated = |name: &&str| !stated.value(name).is_null();
    let mut broken = Vec::new();
    let sources: Vec<&str> = ["config_path", "config_paths", "host"].into_iter().filter(is_stated).collect();
    if let [one, other, ..] = sources[..] {
        broken.push(format!(
            "kubernetes.{one} and kubernetes.{other} are stated: only one of them can be used"
        ));
    }
    if is_stated(&"host") && is_stated(&"config_context") {
        broken
            .push("kubernetes.config_context is for files, and not together with kubernetes.host".to_owned());
    }
    if let Some(name) = OF_HOST.iter().find(|name| is_stated(name) && !is_stated(&"host")) {
        broken.push(format!("kubernetes.{name} is stated without kubernetes.host, which it is for"));
    }
    if is_stated(&"token") && is_stated(&"exec") {
        broken
            .push("kubernetes.token and kubernetes.exec are stated: only one of them can be used".to_owned());
    }
    if is_stated(&"client_certificate") != is_stated(&"client_key") {
        broken.push("kubernetes.client_certificate and kubernetes.client_key go together".to_owned());
    }
    broken.into_iter().map(unusable).collect()
}

/// The access that a valid configuration and the environment give.
pub fn access(config: &Object, environment: impl Fn(&str) -> Option<String>) -> Access {
    let kubernetes = config.value("kubernetes");
    let has_unknown = |object: &Object| object.members().any(|(_, value)| is_unknown(value));
    for (name, value) in [("namespace", config.value("namespace")), ("kubernetes", kubernetes)] {
        if is_unknown(value) || matches!(value, Value::Object(object) if has_unknown(object)) {
            return Access::NotKnown(name);
        }
    }
    let empty = Object::default();
    let stated = config.object("kubernetes").unwrap_or(&empty);
    let environment = |name: &str| environment(name).filter(|value| !value.is_empty());
    match server(stated, &environment, Path::new(IN_POD)) {
        Ok(server) => Access::Ready(Box::new(Server {
            namespace: config.text("namespace").unwrap_or("default").to_owned(),
            timeout: crate::settings::timeout(config),
            ..server
        })),
        Err(reason) => Access::Unusable(unusable(reason)),
    }
}

fn unusable(reason: String) -> Diagnostic {
    Diagnostic::error("The access to Kubernetes cannot be used", reason).at("kubernetes")
}

fn is_unknown(value: &Value) -> bool {
    match value {
        Value::List(members) => members.contains(&Value::Unknown),
        Value::Map(members) => members.values().any(|member| *member == Value::Unknown),
        Value::Object(object) => object.members().any(|(_, value)| is_unknown(value)),
        value => *value == Value::Unknown,
    }
}

fn server(
    stated: &Object,
    environment: &impl Fn(&str) -> Option<String>,
    in_pod: &Path,
) -> Result<Server, String> {
    if let Some(host) = stated.text("host") {
        return of_host(host, stated);
    }
    // As `kubectl`: files of a list that do not exist are left out.
    let paths = |text: String| {
        let all: Vec<PathBuf> = std::env::split_paths(&text).filter(|path| *path != Path::new("")).collect();
        let there: Vec<PathBuf> = all.iter().filter(|path| path.exists()).cloned().collect();
        if there.is_empty() { all } else { there }
    };
    let one = stated.text("config_path").map(|path| vec![home(path, environment)]);
    let several = || {
        let several = stated.value("config_paths").all_texts();
        (!several.is_empty()).then(|| several.into_iter().map(|path| home(path, environment)).collect())
    };
    let variable = || environment("KUBE_CONFIG_PATH").map(|path| vec![home(&path, environment)]);
    let files = one.or_else(several).or_else(variable).or_else(|| environment("KUBECONFIG").map(paths));
    if let Some(files) = files {
        return kubeconfig::read(&files, stated.text("config_context"));
    }
    let (host, port) = (environment("KUBERNETES_SERVICE_HOST"), environment("KUBERNETES_SERVICE_PORT"));
    let (Some(host), Some(port)) = (host, port) else {
        return Err("svc_fabric needs the API server of Kubernetes: state kubernetes.config_path or kubernetes.host in the \
                    provider configuration, or set KUBE_CONFIG_PATH"
            .to_owned());
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let ca = kubeconfig::bytes(&in_pod.join("ca.crt"))?;
    let user = User { token: Some(Token::File(in_pod.join("token"))), ..User::default() };
    Ok(Server::new(format!("https://{host}:{port}"), Some(ca), user))
}

/// `~/` is the home directory, as in the provider `kubernetes`.
fn home(path: &str, environment: &impl Fn(&str) -> Option<String>) -> PathBuf {
    match (path.strip_prefix("~/"), environment("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => PathBuf::from(path),
    }
}

fn of_host(host: &str, stated: &Object) -> Result<Server, String> {
    let pem = |name: &str| stated.text(name).map(|text| text.as_bytes().to_vec());
    let certificate = pem("client_certificate").zip(pem("client_key"));
    let certificate = certificate.map(|(certificate, private_key)| Certificate { certificate, private_key });
    let token = stated.text("token").map(|token| Token::Text(token.to_owned()));
    let exec = stated.object("exec").map(program).transpose()?;
    let user = User { token, certificate, exec };
    Ok(Server::new(host.to_owned(), pem("cluster_ca_certificate"), user))
}

fn program(stated: &Object) -> Result<Exec, String> {
    let texts = |name: &str| stated.value(name).all_texts().into_iter().map(str::to_owned).collect();
    let text = |name: &str| stated.text(name).unwrap_or_default();
    let environment = match stated.value("env") {
        Value::Map(members) => {
            let member = |(name, value): (&String, &Value)| Some((name.clone(), value.as_text()?.to_owned()));
            members.iter().filter_map(member).collect()
        }
        _ => Vec::new(),
    };
    Exec::new(text("api_version"), PathBuf::from(text("command")), texts("args"), environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: fn(&str) -> Option<String> = |_| None;

    fn stated(members: &[(&'static str, Value)]) -> Object {
        members.iter().fold(Object::default(), |object, (name, value)| object.with(name, value.clone()))
    }

    fn config(members: &[(&'static str, Value)]) -> Object {
        Object::default().with("kubernetes", Value::Object(stated(members)))
    }

    #[test]
    fn one_source_of_the_api_server_is_used() {
        let text = Value::text;
        for (members, said) in [
            (vec![("host", text("h")), ("config_path", text("p"))], "only one of them"),
            (
                vec![("config_path", text("p")), ("config_paths", Value::List(vec![text("p")]))],
                "only one of them",
            ),
            (vec![("token", text("t"))], "kubernetes.token is stated without kubernetes.host"),
            (vec![("host", text("h")), ("config_context", text("c"))], "config_context is for files"),
            (vec![("host", text("h")), ("client_key", text("k"))], "go together"),
            (
                vec![("host", text("h")), ("token", text("t")), ("exec", Value::Object(Object::default()))],
                "only one of them",
            ),
        ] {
            let broken = validate(&config(&members));
            assert!(broken.len() == 1 && broken[0].detail.contains(said), "{members:?}: {broken:?}");
        }
        assert_eq!(validate(&config(&[("host", text("h")), ("token", text("t"))])), []);
        assert_eq!(validate(&Object::default()), []);
    }

    #[test]
    fn unknown_value_at_any_depth_is_not_known() {
        let exec = stated(&[("args", Value::List(vec![Value::Unknown]))]);
        for members in [vec![("token", Value::Unknown)], vec![("exec", Value::Object(exec))]] {
            assert!(matches!(access(&config(&members), NONE), Access::NotKnown("kubernetes")), "{members:?}");
        }
        let namespace = Object::default().with("namespace", Value::Unknown);
        assert!(matches!(access(&namespace, NONE), Access::NotKnown("namespace")));
    }

    /// Regression: `KUBECONFIG=$KUBECONFIG:$HOME/.kube/config` with an unset variable begins with an empty name.
    #[test]
    fn missing_files_of_a_list_are_left_out() {
        let directory = tempfile::tempdir().expect("directory");
        let file = directory.path().join("config");
        let config = "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
                      clusters: [{name: k, cluster: {server: 'https://k.example'}}]\n\
                      users: [{name: u, user: {token: t}}]\n";
        std::fs::write(&file, config).expect("written");
        let of = |list: String| {
            let environment = move |name: &str| (name == "KUBECONFIG").then(|| list.clone());
            server(&Object::default(), &environment, directory.path()).map(|server| server.url.clone())
        };
        let file = file.display();
        for list in [format!(":{file}"), format!("{file}:/nowhere"), format!("/nowhere:{file}")] {
            assert_eq!(of(list.clone()), Ok("https://k.example".to_owned()), "{list}");
        }
        assert!(of("/nowhere".to_owned()).is_err_and(|error| error.contains("/nowhere")));
    }

    #[test]
    fn pod_uses_its_own_service_account() {
        let directory = tempfile::tempdir().expect("directory");
        std::fs::write(directory.path().join("ca.crt"), "PEM").expect("written");
        let environment = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some("fd00::1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
            _ => None,
        };
        let server = server(&Object::default(), &environment, directory.path()).expect("a server");
        assert_eq!((&*server.url, server.ca.as_deref()), ("https://[fd00::1]:443", Some(&b"PEM"[..])));
        assert!(server.user.token == Some(Token::File(directory.path().join("token"))));
        let Access::Unusable(message) = access(&Object::default(), NONE) else { panic!("no access") };
        assert!(message.detail.contains("state kubernetes.config_path"), "{message:?}");
    }

    #[test]
    fn version_of_a_program_must_be_known() {
        let exec = stated(&[("api_version", Value::text("v1alpha1")), ("command", Value::text("aws"))]);
        let members = [("host", Value::text("https://h")), ("exec", Value::Object(exec))];
        let Access::Unusable(message) = access(&config(&members), NONE) else { panic!("refused") };
        assert!(message.detail.contains("client.authentication.k8s.io/v1"), "{message:?}");
    }
}
