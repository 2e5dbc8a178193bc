//! `bench exchange`: the processor time of exchanges beside that of a floor server, which verifies and signs.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value};

use crate::beside::{Beside, Kind, Most, Plan};
use crate::credentials::{self, PreparedRequests};
use crate::floor::{Floor, Route};
use crate::load::Write;
use crate::node::{Node, Start};
use crate::oha;
use crate::wire::{self, Target};

const CONNECTIONS: usize = 32;
/// Upper bounds of exchanges per second and core; a measurement ends when its credentials are used.
const PER_SEC_MAX: u32 = 12_000;
/// RS256 signatures take the generator a quarter of a millisecond.
const RSA_PER_SEC_MAX: u32 = 8_000;
const CALLER: &str = "workload";
const PATH: &str = "/v1/exchange/token";

pub async fn run(start: &Start, plan: &Plan) -> Result<bool> {
    let node = start.node(Some(plan.cores.node_core)).await?;
    let target = node.target(CALLER)?;
    let seen = credentials::exchange(&node.issuer.credential(0)?);
    let seen = wire::request_with("POST", PATH, &target.host, "", seen.as_bytes());
    let answer = answer(&target, &seen).await?;
    let route = |path: &str| Route::new(path, &answer).signing();
    let routes = vec![
        route("/es256").verifying(&node.issuer.jwk()),
        route("/rs256").verifying(&node.rsa_issuer.jwk()),
        route("/sign"),
    ];
    let floor = Floor::start(&node, plan.cores.node_core, CALLER, routes).await?;
    let mut beside = Beside::new("Exchanges", (&node, &target, &floor), CONNECTIONS, plan);
    for round in 1..=plan.rounds {
        let mut kinds = of_new_credentials(&node, &target.host, plan, (round as u64) << 32);
        while let Some(kind) = kinds.pop() {
            beside.measure(round, &kind()?).await?;
        }
        let bytes = seen.clone();
        let write: Write = Arc::new(move |_, request| request.clone_from(&bytes));
        let name = "credential seen before";
        beside.measure(round, &Kind { name, write, floor_path: "/sign", most: Most::UNBOUNDED }).await?;
    }
    if let Some(program) = &plan.oha {
        let confirmed =
            oha::Confirmed { program, caller: CALLER, connections: CONNECTIONS, cores: plan.cores };
        beside.confirm(&confirmed, PATH, &seen).await?;
    }
    beside.finish("exchange", start.output.as_deref())
}

type Prepare<'n> = Box<dyn FnOnce() -> Result<Kind> + 'n>;

/// Kinds whose requests are prepared when their turn comes, the first one last.
fn of_new_credentials<'n>(node: &'n Node, host: &'n str, plan: &Plan, first: u64) -> Vec<Prepare<'n>> {
    let (most, most_rsa) = (plan.most(PER_SEC_MAX), plan.most(RSA_PER_SEC_MAX));
    let kind = |name, floor_path, most, prepared: PreparedRequests| Kind {
        name,
        write: prepared.into_write(),
        floor_path,
        most,
    };
    vec![
        Box::new(move || {
            // Of the same length, so that the credentials have it too.
            let credentials = (first..first + most_rsa.all() as u64)
                .map(|number| node.issuer.credential_of(&format!("account-{number:016x}"), number));
            let prepared = PreparedRequests::of(host, credentials)?;
            Ok(kind("new ES256 credential, new subject", "/es256", most_rsa, prepared))
        }),
        Box::new(move || {
            let prepared = PreparedRequests::new(&node.rsa_issuer, host, first, most_rsa.all())?;
            Ok(kind("new RS256 credential", "/rs256", most_rsa, prepared))
        }),
        Box::new(move || {
            let prepared = PreparedRequests::new(&node.issuer, host, first, most.all())?;
            Ok(kind("new ES256 credential", "/es256", most, prepared))
        }),
    ]
}

/// The fields of a good answer.
pub async fn answer(target: &Target, request: &[u8]) -> Result<Map<String, Value>> {
    let answer = target.call(request).await?;
    if answer.status != 200 {
        bail!("a valid request is answered {}: {}", answer.status, String::from_utf8_lossy(answer.body()));
    }
    let body: Value = serde_json::from_slice(answer.body())?;
    Ok(body.as_object().context("an answer that is no object")?.clone())
}
