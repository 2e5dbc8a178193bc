//! The routes of the node by its `/openapi.json`.

use anyhow::{Context as _, Result};

use crate::node::Node;
use crate::wire;

/// Public routes (contract §2). Metrics have a setting of their own.
const PUBLIC: [&str; 9] = [
    "/v1/federation/bundle",
    "/v1/identity/jwks",
    "/.well-known/oauth-authorization-server",
    "/.well-known/ssf-configuration",
    "/v1/sys/health",
    "/livez",
    "/readyz",
    "/metrics",
    "/openapi.json",
];

#[derive(Clone)]
pub struct Route {
    /// In capitals.
    pub method: String,
    /// With a value for every parameter.
    pub path: String,
    pub public: bool,
}

impl Route {
    /// A request without credentials; if it may have a body, an empty object.
    pub fn request(&self, path: &str, host: &str, headers: &str) -> Vec<u8> {
        if ["POST", "PUT", "PATCH"].contains(&self.method.as_str()) {
            wire::request_with(&self.method, path, host, headers, b"{}")
        } else {
            wire::request(&self.method, path, host, headers)
        }
    }
}

/// Reads `/openapi.json`.
pub async fn read(node: &Node) -> Result<Vec<Route>> {
    let target = node.target("operator")?;
    let answer = target.call(&wire::request("GET", "/openapi.json", &target.host, "")).await?;
    let document: serde_json::Value = serde_json::from_slice(answer.body()).context("/openapi.json")?;
    let paths = document["paths"].as_object().context("/openapi.json has no paths")?;
    let mut routes = Vec::new();
    for (path, item) in paths {
        let public = PUBLIC.contains(&path.as_str());
        let path = filled(path);
        for method in ["get", "put", "post", "delete", "patch"] {
            if item.get(method).is_some() {
                routes.push(Route { method: method.to_uppercase(), path: path.clone(), public });
            }
        }
    }
    Ok(routes)
}

/// The path with a value for every `{parameter}`.
fn filled(path: &str) -> String {
    let parts: Vec<_> = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::filled;

    #[test]
    fn parameters_of_a_path_get_values() {
        assert_eq!(filled("/v1/sys/keys/{kid}/taint"), "/v1/sys/keys/x/taint");
    }
}
