//! Every limit of the provider.

use std::time::Duration;

// --- Terraform provider: process ------------------------------------------------------------------------------

/// Maximum wait for the TLS handshake of a connection; beyond it: the connection is closed.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum concurrent connections, handshakes included; beyond it: the connection is closed.
pub const CONNECTIONS_MAX: usize = 16;
/// Maximum message of Terraform; beyond it: the call fails.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Interval at which the plugin checks whether the process that started it still exists.
pub const PARENT_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum wait for calls in progress at the end.
pub const SHUTDOWN_MAX: Duration = Duration::from_secs(1);
/// Maximum time to close the ephemeral resources that Terraform has left open, after that wait; beyond it: they stay open.
/// Terraform kills the plugin 2 s after it ended it.
pub const CLOSE_AT_END_MAX: Duration = Duration::from_millis(800);

// --- Terraform provider: values --------------------------------------------------------------------------------------

/// Maximum nesting of a value; beyond it: the value is refused.
pub const VALUE_DEPTH_MAX: usize = 16;

// --- Terraform provider: requests ------------------------------------------------------------------------------------

/// Timeout of one request to one node, if `request_timeout` is not set.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum `request_timeout` and maximum timeout of an operation; beyond it: the configuration is refused.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// Timeout of an operation on a resource, all attempts included, if `timeouts` does not state another.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum `rotate_before` of an agent; beyond it: the configuration is refused.
pub const ROTATE_BEFORE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// `rotate_before` of an agent, if it is not set.
pub const ROTATE_BEFORE: Duration = Duration::from_secs(72 * 3600);
/// First wait before a request is repeated; each is twice the wait before it.
pub const RETRY_WAIT_MIN: Duration = Duration::from_millis(200);
/// Maximum wait before a request is repeated, without `Retry-After`.
pub const RETRY_WAIT_MAX: Duration = Duration::from_secs(5);
/// Maximum `Retry-After` that is waited for; beyond it: this long.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// Maximum wait for the response to a request that was sent before Terraform stopped the provider.
pub const STOP_GRACE: Duration = Duration::from_secs(1);
/// Maximum file of a bearer token; beyond it: the rest is not read, and the node refuses the token.
pub const TOKEN_FILE_BYTES_MAX: u64 = 64 * 1024;

// --- Terraform provider: Kubernetes ----------------------------------------------------------------------------------

/// Maximum file of `kubectl`, of a token or of a CA; beyond it: the rest is not read, and the file cannot be used.
pub const KUBECONFIG_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum time of a program that gives a credential; beyond it: the program is killed, and the operation fails.
pub const EXEC_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum response of an API server: etcd stores no larger object. Beyond it: the operation fails.
pub const OBJECT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Interval at which an object is read whose phase or end is waited for.
pub const PHASE_INTERVAL: Duration = Duration::from_millis(500);
