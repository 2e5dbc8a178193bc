//! The real Terraform with `svc_fabric`, against the fake API server, where there is a `terraform` (1.11 or later) on PATH.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tokio::process::Command;

use super::api_server::{ApiServer, TOKEN};
use super::fabrics::{apply_as, live};
use super::kubectl::{fabric, on_path};
use super::plugin::PROGRAM;

const MAIN: &str = r#"
terraform {
  required_providers {
    svc = { source = "registry.example/fabric/svc" }
  }
}
provider "svc" {
  kubernetes = { config_path = "kubeconfig" }
}
variable "spec" {
  type = string
}
variable "force" {
  type    = bool
  default = null
}
resource "svc_fabric" "main" {
  name            = "main"
  spec            = yamlencode(jsondecode(file(var.spec)))
  force_conflicts = var.force
}
output "values" {
  value = svc_fabric.main.values_yaml
}
"#;

struct Terraform {
    program: PathBuf,
    directory: TempDir,
}

impl Terraform {
    fn prepare(server: &ApiServer) -> Option<Self> {
        let program = on_path("terraform")?;
        let directory = tempfile::tempdir().expect("directory");
        let terraform = Self { program, directory };
        let place = Path::new(PROGRAM).parent().and_then(Path::to_str).expect("a directory");
        let overrides = format!(
            "provider_installation {{\n  dev_overrides {{ \"registry.example/fabric/svc\" = \"{place}\" }}\n}}\n"
        );
        terraform.write("terraformrc", &overrides);
        terraform.write("main.tf", MAIN);
        terraform.write("kubeconfig", &server.kubeconfig(&json!({ "token": TOKEN })));
        terraform.write("first.json", &fabric("three-nodes")["spec"].to_string());
        Some(terraform)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).expect("written");
    }

    /// Exit code and output.
    async fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let directory = self.directory.path();
        let mut command = Command::new(&self.program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("TF_CLI_CONFIG_FILE", directory.join("terraformrc")).env("CHECKPOINT_DISABLE", "1");
        command.env("TF_VAR_spec", "first.json").env("TF_IN_AUTOMATION", "1").env("HOME", directory);
        let ended =
            command.args(arguments).arg("-no-color").current_dir(directory).output().await.expect("run");
        let text = [ended.stdout, ended.stderr].concat();
        (ended.status.code(), String::from_utf8(text).expect("UTF-8"))
    }

    async fn does(&self, arguments: &[&str], code: i32, said: &str) -> String {
        let (ended, text) = self.run(arguments).await;
        assert!(ended == Some(code) && text.contains(said), "terraform {}: {text}", arguments.join(" "));
        text
    }
}

#[tokio::test]
async fn terraform_manages_a_fabric() {
    let server = ApiServer::with_definition().await;
    let Some(terraform) = Terraform::prepare(&server) else { return };
    let (apply, plan) =
        (["apply", "-input=false", "-auto-approve"], ["plan", "-input=false", "-detailed-exitcode"]);
    terraform.write("example.tf", include_str!("../../examples/svc_fabric.tf"));
    terraform.does(&["validate"], 0, "configuration is valid").await;
    fs::remove_file(terraform.directory.path().join("example.tf")).expect("removed");
    let created = terraform.does(&apply, 0, "1 added, 0 changed, 0 destroyed").await;
    assert!(created.contains("trustDomain: trust.example.com"), "values in the plan: {created}");
    terraform.does(&plan, 0, "No changes").await;

    let mut newer = fabric("three-nodes")["spec"].clone();
    newer["version"] = json!("0.2.0");
    terraform.write("newer.json", &newer.to_string());
    let newer = ["-var", "spec=newer.json"];
    terraform.does(&[&apply[..], &newer].concat(), 0, "0 added, 1 changed, 0 destroyed").await;
    assert_eq!(live(&server).expect("stored")["spec"]["version"], "0.2.0");

    apply_as(&server, "ops", &json!({ "spec": { "version": "9.0.0" } }));
    terraform.does(&[&plan[..], &newer].concat(), 2, "9.0.0").await;
    let refused = terraform.does(&[&apply[..], &newer].concat(), 1, "Another manager owns fields").await;
    for part in ["with svc_fabric.main", "owned by \"ops\"", "terraform-provider-svc", "main.tf line"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let forced = [&apply[..], &newer, &["-var", "force=true"]].concat();
    terraform.does(&forced, 0, "0 added, 1 changed, 0 destroyed").await;

    let mut moved = fabric("three-nodes")["spec"].clone();
    moved["issuer"] = json!("https://other.example.com");
    terraform.write("moved.json", &moved.to_string());
    let moved = [&plan[..], &["-var", "spec=moved.json"]].concat();
    terraform.does(&moved, 1, "issuer is immutable").await;

    terraform.does(&["state", "rm", "svc_fabric.main"], 0, "Removed").await;
    terraform
        .does(
            &["import", "-input=false", "-var", "spec=newer.json", "svc_fabric.main", "default/main"],
            0,
            "",
        )
        .await;
    terraform.does(&[&plan[..], &newer].concat(), 0, "No changes").await;
    let state = fs::read_to_string(terraform.directory.path().join("terraform.tfstate")).expect("a state");
    let parsed: Json = serde_json::from_str(&state).expect("JSON");
    assert_eq!(parsed["resources"][0]["type"], "svc_fabric");
    assert!(!state.contains(TOKEN));
    terraform.does(&["destroy", "-input=false", "-auto-approve"], 0, "1 destroyed").await;
    assert_eq!(live(&server), None);
}
