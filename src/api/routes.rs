//! A route table whose every row states the route's requirement on its caller. A handler whose signature states another
//! requirement, or none, does not compile; nor does one without its description (`#[utoipa::path]`).

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, on};
use utoipa::openapi::OpenApi;

use super::App;
use super::caller::{Access, Caller, Need};

/// One row of the route table.
#[derive(Clone, Debug)]
pub struct Route {
    /// The HTTP method.
    pub method: Method,
    /// The path; parameters in braces.
    pub path: &'static str,
    /// The requirement on the caller.
    pub access: Access,
    /// The interface description of the handler and its schemas. utoipa requires a path in it, which is not used.
    pub describe: fn() -> OpenApi,
}

/// A handler that states a caller of `N` as its first argument. `T` is axum's own tuple of arguments.
pub trait StatesCaller<N, T> {}

macro_rules! states_caller {
    ($($argument:ident),*) => {
        impl<F, Fut, N, M, $($argument,)*> StatesCaller<N, (M, Caller<N>, $($argument,)*)> for F
        where
            F: FnOnce(Caller<N>, $($argument,)*) -> Fut,
        {
        }
    };
}

states_caller!();
states_caller!(A);
states_caller!(A, B);
states_caller!(A, B, C);
states_caller!(A, B, C, D);
states_caller!(A, B, C, D, E);

/// Routes of rows `(method, path, need, handler)`.
macro_rules! routes {
    [$(($method:ident, $path:literal, $need:expr, $($handler:ident)::+),)*] => {
        $crate::api::routes::Routes::new()$(.row(axum::http::Method::$method, $path, $need, $($handler)::+, {
            #[derive(utoipa::OpenApi)]
            #[openapi(paths($($handler)::+))]
            struct Described;
            <Described as utoipa::OpenApi>::openapi
        }))*
    };
}
pub(super) use routes;

/// The rows, and the router built from them.
pub struct Routes {
    rows: Vec<Route>,
    router: Router<App>,
}

impl Routes {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self { rows: Vec::new(), router: Router::new() }
    }

    /// Adds a row: `handler` serves `method` on `path` and takes a caller of need `N`.
    #[must_use]
    pub fn row<N, T, H>(
        mut self,
        method: Method,
        path: &'static str,
        _need: N,
        handler: H,
        describe: fn() -> OpenApi,
    ) -> Self
    where
        N: Need,
        T: 'static,
        H: Handler<T, App> + StatesCaller<N, T>,
    {
        // Every method of this table is one that axum routes; GET also answers HEAD.
        let filter = MethodFilter::try_from(method.clone()).unwrap_or(MethodFilter::TRACE);
        self.router = self.router.route(path, on(filter, handler));
        self.rows.push(Route { method, path, access: N::ACCESS, describe });
        self
    }

    /// Every row.
    #[must_use]
    pub fn rows(&self) -> &[Route] {
        &self.rows
    }

    /// The axum router of all rows.
    pub fn into_router(self) -> Router<App> {
        self.router
    }
}
