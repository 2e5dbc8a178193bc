//! The calls of Terraform: messages in, messages out. The work is in `operations`.
//!
//! A failure is a diagnostic, not a gRPC status, so that Terraform shows it as what it is. No response contains a secret.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::diagnostic::Diagnostic;
use crate::ephemeral::{self, Ephemeral, OpenResources};
use crate::ephemerals;
use crate::kubernetes;
use crate::operations::{self, Change, Kept, Session};
use crate::private::Private;
use crate::proto::tfplugin6 as proto;
use crate::proto::tfplugin6::provider_server::Provider;
use crate::resource::{self, Resource};
use crate::resources;
use crate::schema::Attribute;
use crate::settings::{self, Access};
use crate::value::{Object, json, msgpack};

type Environment = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The provider of one plugin process.
pub struct FabricProvider {
    environment: Environment,
    access: RwLock<Arc<Access>>,
    kubernetes: RwLock<Arc<kubernetes::Access>>,
    /// Texts of the provider configuration that no message may contain.
    secrets: RwLock<Vec<String>>,
    stopped: CancellationToken,
    open: Arc<OpenResources>,
}

impl FabricProvider {
    /// An unconfigured provider; `environment` looks up variables.
    pub fn new(environment: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self {
            environment: Box::new(environment),
            access: RwLock::new(Arc::new(Access::NoEndpoint)),
            kubernetes: RwLock::new(Arc::new(kubernetes::Access::NotKnown("kubernetes"))),
            secrets: RwLock::default(),
            stopped: CancellationToken::new(),
            open: Arc::default(),
        }
    }

    /// The ephemeral resources that are to be closed at the end of the plugin.
    pub fn open_resources(&self) -> Arc<OpenResources> {
        Arc::clone(&self.open)
    }

    fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn session(&self, resource: &'static dyn Resource) -> Session {
        let kubernetes = Arc::clone(&self.kubernetes.read().unwrap_or_else(PoisonError::into_inner));
        Session { resource, access: self.access(), kubernetes, stopped: self.stopped.clone() }
    }

    fn configure(&self, config: &Object) -> Result<(), Diagnostic> {
        let access = settings::access(config, &self.environment)?;
        let kubernetes = kubernetes::settings::access(config, &self.environment);
        let stated = config.secrets(settings::TABLE.attributes).map(str::to_owned);
        let variable = (self.environment)("TRUST_FABRIC_TOKEN");
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = stated.chain(variable).collect();
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
        *self.kubernetes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(kubernetes);
        Ok(())
    }

    /// The messages as sent: without secrets of the provider or of these values of a resource.
    fn messages(
        &self,
        diagnostics: Vec<Diagnostic>,
        attributes: &[Attribute],
        objects: &[&Object],
    ) -> Vec<proto::Diagnostic> {
        let secrets = self.secrets.read().unwrap_or_else(PoisonError::into_inner);
        let own: Vec<&str> = objects.iter().flat_map(|object| object.secrets(attributes)).collect();
        let hidden = || secrets.iter().map(String::as_str).chain(own.iter().copied());
        diagnostics.into_iter().map(|message| message.without(hidden()).into()).collect()
    }
}

/// The resource type of a call.
fn named(type_name: &str) -> Result<&'static dyn Resource, Status> {
    resources::named(type_name).ok_or_else(|| Status::invalid_argument("this resource type does not exist"))
}

/// The type of ephemeral resources of a call.
fn named_ephemeral(type_name: &str) -> Result<&'static dyn Ephemeral, Status> {
    let known = ephemerals::named(type_name);
    known.ok_or_else(|| Status::invalid_argument("this type of ephemeral resources does not exist"))
}

/// The object of a message; `None` for null.
fn object(
    value: Option<&proto::DynamicValue>,
    attributes: &'static [Attribute],
) -> Result<Option<Object>, Status> {
    let value = value.ok_or_else(|| Status::invalid_argument("a value is missing"))?;
    if value.msgpack.is_empty() {
        let json = serde_json::from_slice(&value.json)
            .map_err(|_| Status::invalid_argument("a value is no JSON"))?;
        return json::decode(&json, attributes).map(Some).map_err(malformed);
    }
    msgpack::decode(&value.msgpack, attributes).map_err(malformed)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn malformed(error: crate::value::Error) -> Status {
    Status::invalid_argument(error.to_string())
}

/// An object, or null, for a message.
#[expect(clippy::unnecessary_wraps, reason = "the type of the fields")]
fn dynamic(object: Option<&Object>, attributes: &[Attribute]) -> Option<proto::DynamicValue> {
    Some(proto::DynamicValue { msgpack: msgpack::encode(object, attributes), json: Vec::new() })
}

fn path(attribute: &str) -> proto::AttributePath {
    use proto::attribute_path::{Step, step::Selector};
    let selector = Some(Selector::AttributeName(attribute.to_owned()));
    proto::AttributePath { steps: vec![Step { selector }] }
}

#[tonic::async_trait]
impl Provider for FabricProvider {
    async fn get_provider_schema(
        &self,
        _request: Request<proto::SchemaRequest>,
    ) -> Result<Response<proto::SchemaResponse>, Status> {
        let schemas = resources::all().into_iter().map(|resource| {
            let table = resource.table();
            (table.name.to_owned(), table.schema())
        });
        let ephemerals = ephemerals::all().into_iter().map(|ephemeral| {
            let table = ephemeral.table();
            (table.name.to_owned(), table.schema())
        });
        Ok(Response::new(proto::SchemaResponse {
            provider: Some(settings::TABLE.schema()),
            resource_schemas: schemas.collect(),
            ephemeral_resource_schemas: ephemerals.collect(),
            diagnostics: Vec::new(),
            server_capabilities: Some(proto::ServerCapabilities {
                plan_destroy: true,
                get_provider_schema_optional: true,
            }),
        }))
    }

    async fn validate_provider_config(
        &self,
        request: Request<proto::ValidateProviderRequest>,
    ) -> Result<Response<proto::ValidateProviderResponse>, Status> {
        let attributes = settings::TABLE.attributes;
        let config = object(request.get_ref().config.as_ref(), attributes)?.unwrap_or_default();
        let mut broken = resource::broken_rules(attributes, &config);
        broken.extend(settings::validate(&config));
        let diagnostics = self.messages(broken, attributes, &[&config]);
        Ok(Response::new(proto::ValidateProviderResponse { diagnostics }))
    }

    async fn configure_provider(
        &self,
        request: Request<proto::ConfigureRequest>,
    ) -> Result<Response<proto::DiagnosticsResponse>, Status> {
        let attributes = settings::TABLE.attributes;
        let config = object(request.get_ref().config.as_ref(), attributes)?.unwrap_or_default();
        let failed = self.configure(&config).err().into_iter().collect();
        let diagnostics = self.messages(failed, attributes, &[&config]);
        Ok(Response::new(proto::DiagnosticsResponse { diagnostics }))
    }

    async fn stop_provider(
        &self,
        _request: Request<proto::StopRequest>,
    ) -> Result<Response<proto::StopResponse>, Status> {
        self.stopped.cancel();
        Ok(Response::new(proto::StopResponse { error: String::new() }))
    }

    async fn validate_resource_config(
        &self,
        request: Request<proto::ValidateResourceRequest>,
    ) -> Result<Response<proto::DiagnosticsResponse>, Status> {
        let request = request.into_inner();
        let resource = named(&request.type_name)?;
        let attributes = resource.table().attributes;
        let config = object(request.config.as_ref(), attributes)?.unwrap_or_default();
        let mut broken = resource::broken_rules(attributes, &config);
        broken.extend(resource.validate(&config));
        if !request.client_capabilities.is_some_and(|capabilities| capabilities.write_only_attributes_allowed)
        {
            broken.extend(resource::stated_write_only(attributes, &config));
        }
        let diagnostics = self.messages(broken, attributes, &[&config]);
        Ok(Response::new(proto::DiagnosticsResponse { diagnostics }))
    }

    async fn upgrade_resource_state(
        &self,
        request: Request<proto::UpgradeRequest>,
    ) -> Result<Response<proto::UpgradeResponse>, Status> {
        let request = request.into_inner();
        let attributes = named(&request.type_name)?.table().attributes;
        let raw = request.raw_state.ok_or_else(|| Status::invalid_argument("the state is missing"))?;
        let stored = serde_json::from_slice(&raw.json)
            .map_err(|_| Status::invalid_argument("the state is no JSON"))?;
        let state = json::decode(&stored, attributes).map_err(malformed)?;
        let upgraded_state = dynamic(Some(&state), attributes);
        Ok(Response::new(proto::UpgradeResponse { upgraded_state, diagnostics: Vec::new() }))
    }

    async fn read_resource(
        &self,
        request: Request<proto::ReadRequest>,
    ) -> Result<Response<proto::ReadResponse>, Status> {
        let request = request.into_inner();
        let resource = named(&request.type_name)?;
        let attributes = resource.table().attributes;
        let state = object(request.current_state.as_ref(), attributes)?.unwrap_or_default();
        let before = Kept { state: Some(state.clone()), private: Private::decode(&request.private) };
        let (after, diagnostics) = operations::read(&self.session(resource), before).await;
        Ok(Response::new(proto::ReadResponse {
            new_state: dynamic(after.state.as_ref(), attributes),
            diagnostics: self.messages(diagnostics, attributes, &[&state]),
            private: after.private.encode(),
        }))
    }

    async fn plan_resource_change(
        &self,
        request: Request<proto::PlanRequest>,
    ) -> Result<Response<proto::PlanResponse>, Status> {
        let request = request.into_inner();
        let resource = named(&request.type_name)?;
        let attributes = resource.table().attributes;
        let prior = object(request.prior_state.as_ref(), attributes)?;
        let proposed = object(request.proposed_new_state.as_ref(), attributes)?;
        let config = object(request.config.as_ref(), attributes)?.unwrap_or_default();
        let mut planned =
            proposed.map(|proposed| resource::plan(resource, prior.as_ref(), &proposed, &config));
        let mut diagnostics = Vec::new();
        if let (Some(_), Some(planned)) = (&prior, &mut planned) {
            diagnostics.extend(resource::replace_if_due(resource, SystemTime::now(), planned));
        }
        let ends = prior.is_some() && planned.as_ref().is_none_or(|planned| !planned.replaces.is_empty());
        let loss = resource.loss().filter(|_| ends);
        diagnostics.extend(loss.map(|loss| Diagnostic::warning("The deletion is final", loss)));
        let after = planned.as_ref().map(|planned| &planned.state);
        let change = Change { before: prior.as_ref(), after };
        diagnostics.extend(operations::check(&self.session(resource), change, &config));
        Ok(Response::new(proto::PlanResponse {
            planned_state: dynamic(after, attributes),
            requires_replace: planned
                .iter()
                .flat_map(|planned| &planned.replaces)
                .map(|name| path(name))
                .collect(),
            planned_private: request.prior_private,
            diagnostics: self.messages(diagnostics, attributes, &[&config]),
        }))
    }

    async fn apply_resource_change(
        &self,
        request: Request<proto::ApplyRequest>,
    ) -> Result<Response<proto::ApplyResponse>, Status> {
        let request = request.into_inner();
        let resource = named(&request.type_name)?;
        let attributes = resource.table().attributes;
        let prior = object(request.prior_state.as_ref(), attributes)?;
        let config = object(request.config.as_ref(), attributes)?.unwrap_or_default();
        let planned = object(request.planned_state.as_ref(), attributes)?;
        let planned = planned.map(|planned| resource::with_write_only(attributes, planned, &config));
        let change = Change { before: prior.as_ref(), after: planned.as_ref() };
        let private = Private::decode(&request.planned_private);
        let (after, diagnostics) = operations::apply(&self.session(resource), change, private).await;
        let objects: Vec<&Object> = prior.iter().chain(&planned).collect();
        Ok(Response::new(proto::ApplyResponse {
            new_state: dynamic(after.state.as_ref(), attributes),
            private: after.private.encode(),
            diagnostics: self.messages(diagnostics, attributes, &objects),
        }))
    }

    async fn import_resource_state(
        &self,
        request: Request<proto::ImportRequest>,
    ) -> Result<Response<proto::ImportResponse>, Status> {
        let request = request.into_inner();
        let resource = named(&request.type_name)?;
        let table = resource.table();
        let imported = operations::import(table, &request.id);
        let (imported_resources, failed) = match imported {
            Ok(state) => (
                vec![proto::import_response::Imported {
                    type_name: request.type_name,
                    state: dynamic(Some(&state), table.attributes),
                    private: Vec::new(),
                }],
                Vec::new(),
            ),
            Err(refused) => (Vec::new(), vec![refused]),
        };
        let diagnostics = self.messages(failed, table.attributes, &[]);
        Ok(Response::new(proto::ImportResponse { imported_resources, diagnostics }))
    }

    async fn validate_ephemeral_resource_config(
        &self,
        request: Request<proto::ValidateEphemeralRequest>,
    ) -> Result<Response<proto::DiagnosticsResponse>, Status> {
        let request = request.into_inner();
        let ephemeral = named_ephemeral(&request.type_name)?;
        let attributes = ephemeral.table().attributes;
        let config = object(request.config.as_ref(), attributes)?.unwrap_or_default();
        let mut broken = resource::broken_rules(attributes, &config);
        broken.extend(ephemeral.validate(&config));
        let diagnostics = self.messages(broken, attributes, &[&config]);
        Ok(Response::new(proto::DiagnosticsResponse { diagnostics }))
    }

    async fn open_ephemeral_resource(
        &self,
        request: Request<proto::OpenRequest>,
    ) -> Result<Response<proto::OpenResponse>, Status> {
        let request = request.into_inner();
        let ephemeral = named_ephemeral(&request.type_name)?;
        let attributes = ephemeral.table().attributes;
        let config = object(request.config.as_ref(), attributes)?.unwrap_or_default();
        let access = self.access();
        let opened = ephemeral::open(ephemeral, &access, &self.stopped, &config).await;
        if let Ok((_, Some(kept))) = &opened {
            self.open.add(ephemeral, access, kept.clone());
        }
        Ok(Response::new(match opened {
            Ok((result, kept)) => proto::OpenResponse {
                diagnostics: Vec::new(),
                result: dynamic(Some(&result), attributes),
                private: kept.map(String::into_bytes),
            },
            Err(failed) => proto::OpenResponse {
                diagnostics: self.messages(vec![failed], attributes, &[&config]),
                result: dynamic(None, attributes),
                private: None,
            },
        }))
    }

    /// No response to an opening requests a renewal.
    async fn renew_ephemeral_resource(
        &self,
        request: Request<proto::RenewRequest>,
    ) -> Result<Response<proto::RenewResponse>, Status> {
        let private = request.into_inner().private;
        Ok(Response::new(proto::RenewResponse { diagnostics: Vec::new(), private }))
    }

    async fn close_ephemeral_resource(
        &self,
        request: Request<proto::CloseRequest>,
    ) -> Result<Response<proto::DiagnosticsResponse>, Status> {
        let request = request.into_inner();
        let ephemeral = named_ephemeral(&request.type_name)?;
        let kept = String::from_utf8(request.private.unwrap_or_default());
        let kept =
            kept.map_err(|_| Status::invalid_argument("the private value is not that of an opening"))?;
        let failed = if kept.is_empty() {
            None
        } else {
            ephemeral::close(ephemeral, &self.access(), &self.stopped, &kept).await.err()
        };
        if failed.is_none() {
            self.open.remove(&kept);
        }
        let diagnostics = self.messages(failed.into_iter().collect(), ephemeral.table().attributes, &[]);
        Ok(Response::new(proto::DiagnosticsResponse { diagnostics }))
    }
}
